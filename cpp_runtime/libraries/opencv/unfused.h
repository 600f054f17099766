// Put before every file of OpenCV for 64-bit ARM. There its v_fma rounds once, where on x86 and on
// 32-bit ARM a product and a sum round twice, and cubic resizing would give other pixels.
#include <arm_neon.h>

#define vfmaq_f32(sum, a, b) vaddq_f32(sum, vmulq_f32(a, b))
#define vfmaq_f64(sum, a, b) vaddq_f64(sum, vmulq_f64(a, b))
