/* The functions of libsodium's utils.c that Ed25519 and SHA-2 call; the file itself brings guarded
 * memory and a random number generator along. Parameters are named as in its header. */
#include <stddef.h>

#include "utils.h"

void sodium_memzero(void* const pnt, const size_t len) {
  volatile unsigned char* bytes = pnt;
  for (size_t i = 0; i < len; ++i) bytes[i] = 0;
}

int sodium_memcmp(const void* const b1_, const void* const b2_, size_t len) {
  const volatile unsigned char* left = b1_;
  const volatile unsigned char* right = b2_;
  unsigned char different = 0;
  for (size_t i = 0; i < len; ++i) different |= (unsigned char)(left[i] ^ right[i]);
  return different == 0 ? 0 : -1;
}

int sodium_is_zero(const unsigned char* const n, const size_t nlen) {
  const volatile unsigned char* bytes = n;
  unsigned char any = 0;
  for (size_t i = 0; i < nlen; ++i) any |= bytes[i];
  return any == 0;
}
