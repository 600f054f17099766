// What NVRTC knows by itself of CUDA C, for a C++ compiler of this machine: the same text of kernels
// is compiled by both. A block's threads are fibers of the stand-in driver, which switches between
// them at each barrier. No header is read: the kernels' text has names that those define, too.
#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads)
// One block runs at a time.
#define __shared__ static

struct Extent {
  unsigned x, y, z;
};
extern "C" {
Extent threadIdx, blockIdx, blockDim, gridDim;
void (*stand_in_barrier)();

#define OF_ONE(name) float name##f(float);
OF_ONE(acos) OF_ONE(acosh) OF_ONE(asin) OF_ONE(asinh) OF_ONE(atan) OF_ONE(atanh) OF_ONE(ceil)
OF_ONE(cos) OF_ONE(cosh) OF_ONE(erf) OF_ONE(exp) OF_ONE(exp2) OF_ONE(fabs) OF_ONE(floor)
OF_ONE(log) OF_ONE(log10) OF_ONE(log1p) OF_ONE(log2) OF_ONE(nearbyint) OF_ONE(rint)
OF_ONE(round) OF_ONE(sin) OF_ONE(sinh) OF_ONE(sqrt) OF_ONE(tan) OF_ONE(tanh) OF_ONE(trunc)
float atan2f(float, float);
float fmodf(float, float);
float powf(float, float);
float fmaf(float, float, float);
}

static inline float rsqrtf(float value) { return 1 / sqrtf(value); }
static inline void __syncthreads() { stand_in_barrier(); }
static inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
static inline int __float_as_int(float value) { return __builtin_bit_cast(int, value); }
static inline double __longlong_as_double(long long bits) {
  return __builtin_bit_cast(double, bits);
}
// Of the same type only, as NVRTC's are exact about it.
template <typename Type>
static inline Type max(Type a, Type b) { return a < b ? b : a; }
template <typename Type>
static inline Type min(Type a, Type b) { return b < a ? b : a; }
static inline bool isnan(float value) { return value != value; }
static inline bool isinf(float value) { return __builtin_isinf(value); }

#define VECTORS(type, of)                                                                        \
  struct alignas(2 * sizeof(of)) type##2 { of x, y; };                                            \
  struct type##3 { of x, y, z; };                                                                 \
  struct alignas(4 * sizeof(of)) type##4 { of x, y, z, w; };                                      \
  static inline type##2 make_##type##2(of x, of y) { return {x, y}; }                             \
  static inline type##3 make_##type##3(of x, of y, of z) { return {x, y, z}; }                    \
  static inline type##4 make_##type##4(of x, of y, of z, of w) { return {x, y, z, w}; }
VECTORS(float, float)
VECTORS(int, int)
VECTORS(uint, unsigned)
VECTORS(char, signed char)
VECTORS(uchar, unsigned char)
VECTORS(short, short)
VECTORS(ushort, unsigned short)
VECTORS(longlong, long long)

// NVRTC takes it behind `__shared__`.
#define alignas(bytes) __attribute__((aligned(bytes)))

// A kernel, called with the list of places of its arguments that cuLaunchKernel is given.
template <int... Each>
struct Places {};
template <int Count, int... Each>
struct UpTo : UpTo<Count - 1, Count - 1, Each...> {};
template <int... Each>
struct UpTo<0, Each...> {
  using Type = Places<Each...>;
};
template <typename... Arguments, int... Each>
static void stand_in_call(void (*kernel)(Arguments*...), void** given, Places<Each...>) {
  kernel(*static_cast<Arguments**>(given[Each])...);
}
template <typename... Arguments>
constexpr int stand_in_count(void (*)(Arguments*...)) { return sizeof...(Arguments); }
#define STAND_IN_LAUNCH(kernel)                                                                  \
  extern "C" const int kernel##_count = stand_in_count(kernel);                                  \
  extern "C" void kernel##_call(void** given) {                                                  \
    stand_in_call(kernel, given, UpTo<stand_in_count(kernel)>::Type());                          \
  }
