/* The functions of libsodium's utils.c that Ed25519 and SHA-2 call; the file itself brings guarded
 * memory and a random number generator along. */
#include <stddef.h>

#include "utils.h"

void sodium_memzero(void* const data, const size_t size) {
  volatile unsigned char* bytes = data;
  for (size_t i = 0; i < size; ++i) bytes[i] = 0;
}

int sodium_memcmp(const void* const a, const void* const b, size_t size) {
  const volatile unsigned char* left = a;
  const volatile unsigned char* right = b;
  unsigned char different = 0;
  for (size_t i = 0; i < size; ++i) different |= (unsigned char)(left[i] ^ right[i]);
  return different == 0 ? 0 : -1;
}

int sodium_is_zero(const unsigned char* const data, const size_t size) {
  const volatile unsigned char* bytes = data;
  unsigned char any = 0;
  for (size_t i = 0; i < size; ++i) any |= bytes[i];
  return any == 0;
}
