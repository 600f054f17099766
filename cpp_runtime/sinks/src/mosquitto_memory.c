/* The memory of libmosquitto, in the place of its own memory_mosq.c: a broker says how long a
 * packet is before it sends one, and gets no more than this for it. */
#include <stdlib.h>
#include <string.h>

#include "memory_mosq.h"

static const size_t kMost = (size_t)1 << 20;

void* mosquitto__malloc(size_t size) { return size > kMost ? NULL : malloc(size); }

void* mosquitto__calloc(size_t count, size_t size) {
  return size != 0 && count > kMost / size ? NULL : calloc(count, size);
}

void* mosquitto__realloc(void* memory, size_t size) {
  return size > kMost ? NULL : realloc(memory, size);
}

void mosquitto__free(void* memory) { free(memory); }

char* mosquitto__strdup(const char* text) { return strdup(text); }
