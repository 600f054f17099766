// Bytes per cycle that a core reads of a buffer, again and again; and multiply-adds per cycle.
//
//   memory BYTES   prints three numbers: GHz, bytes of a buffer of BYTES read per cycle, and
//                  multiply-adds of a whole vector of this CPU per cycle
//
// A cycle is what an addition takes that waits for the one before it: the clock that counts time
// stamps is not the core's own.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX2__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef float Vector __attribute__((vector_size(BYTES)));

enum { kSums = 12, kTries = 7, kChain = 16 };
static const double kSeconds = 0.02;

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static uint64_t Additions(uint64_t count) {
  uint64_t sum = count;
  for (uint64_t i = 0; i < count; ++i) {
    for (int k = 0; k < kChain; ++k) {
      sum += i;
      __asm__ volatile("" : "+r"(sum));
    }
  }
  return sum;
}

// Vectors of a buffer as the second factors of multiply-adds, as panels of weights are.
static Vector Read(const Vector* data, size_t count) {
  Vector sums[8];
  memset(sums, 0, sizeof sums);
  const Vector one = {0};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (int k = 0; k < 8; ++k) sums[k] += one * data[i + k];
  }
  for (int k = 1; k < 8; ++k) sums[0] += sums[k];
  return sums[0];
}

static Vector Multiply(uint64_t count) {
  Vector sums[kSums], factor = {0};
  memset(sums, 0, sizeof sums);
  __asm__ volatile("" : "+m"(factor));
  for (uint64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kSums; ++k) sums[k] = sums[k] * factor + factor;
  }
  for (int k = 1; k < kSums; ++k) sums[0] += sums[k];
  return sums[0];
}

static volatile float g_kept;

int main(int argc, char** argv) {
  const size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
  const size_t count = bytes / sizeof(Vector);
  if (count < 8) return fprintf(stderr, "memory: BYTES of 1024 or more\n"), 2;
  Vector* data = aligned_alloc(64, count * sizeof(Vector));
  if (!data) return fprintf(stderr, "memory: no room for %zu bytes\n", bytes), 1;
  memset(data, 0, count * sizeof(Vector));
  // Asking what time it is takes longer than a pass over a first cache.
  const int between = 1 + (int)((4 << 20) / bytes);
  double ghz = 0, read = 0, multiplied = 0;
  // The best of some: what else the machine does only takes away.
  for (int i = 0; i < kTries; ++i) {
    const uint64_t turns = 1000000;
    double start = Now();
    g_kept = (float)Additions(turns);
    const double clock = 1e-9 * kChain * (double)turns / (Now() - start);
    if (clock > ghz) ghz = clock;
    double passes = 0;
    start = Now();
    do {
      for (int k = 0; k < between; ++k) g_kept = Read(data, count)[0];
      passes += between;
    } while (Now() - start < kSeconds);
    const double rate = 1e-9 * passes * (double)(count * sizeof(Vector)) / (Now() - start);
    if (rate > read) read = rate;
    start = Now();
    g_kept = Multiply(turns)[0];
    const double products = 1e-9 * kSums * (double)turns / (Now() - start);
    if (products > multiplied) multiplied = products;
  }
  printf("%.3f %.2f %.2f\n", ghz, read / ghz, multiplied / ghz);
  free(data);
  return 0;
}
