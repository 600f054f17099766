/* The memory of libmosquitto, in the place of its own memory_mosq.c: a broker says how long a
 * packet is before it sends one, and gets no more than this for it. Blocks that it gives back wait
 * for the next of their size, so that a line like the ones before takes nothing from the system.
 * The library calls free() itself only for an id that a broker of MQTT 5 gives: we speak 3.1.1. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "memory_mosq.h"

static const size_t kMost = (size_t)1 << 20;

enum {
  kLeastBytes = 64,
  kKinds = 8, /* of 64 bytes, 128 ... 8192: what is longer does not wait */
/* Sanitizers see more of blocks that are really freed. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  kMostWaiting = 0
#else
  kMostWaiting = 32
#endif
#else
  kMostWaiting = 32
#endif
};

typedef union Block {
  struct {
    union Block* next; /* of those that wait */
    size_t bytes;
    int kind; /* kKinds: none */
  } is;
  max_align_t for_alignment;
} Block;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Block* waiting[kKinds];
static int count[kKinds];

void* mosquitto__malloc(size_t size) {
  if (size > kMost) return NULL;
  int kind = 0;
  while (kind < kKinds && size > (size_t)kLeastBytes << kind) ++kind;
  Block* block = NULL;
  if (kind < kKinds) {
    size = (size_t)kLeastBytes << kind;
    pthread_mutex_lock(&mutex);
    block = waiting[kind];
    if (block != NULL) {
      waiting[kind] = block->is.next;
      --count[kind];
    }
    pthread_mutex_unlock(&mutex);
  }
  if (block == NULL) {
    block = malloc(sizeof(Block) + size);
    if (block == NULL) return NULL;
    block->is.bytes = size;
    block->is.kind = kind;
  }
  return block + 1;
}

void* mosquitto__calloc(size_t items, size_t size) {
  if (size != 0 && items > kMost / size) return NULL;
  void* const memory = mosquitto__malloc(items * size);
  return memory == NULL ? NULL : memset(memory, 0, items * size);
}

void* mosquitto__realloc(void* memory, size_t size) {
  if (memory == NULL) return mosquitto__malloc(size);
  const size_t bytes = ((Block*)memory - 1)->is.bytes;
  if (size <= bytes) return memory;
  void* const larger = mosquitto__malloc(size);
  if (larger == NULL) return NULL;
  memcpy(larger, memory, bytes);
  mosquitto__free(memory);
  return larger;
}

void mosquitto__free(void* memory) {
  if (memory == NULL) return;
  Block* block = (Block*)memory - 1;
  if (block->is.kind < kKinds) {
    pthread_mutex_lock(&mutex);
    if (count[block->is.kind] < kMostWaiting) {
      block->is.next = waiting[block->is.kind];
      waiting[block->is.kind] = block;
      ++count[block->is.kind];
      block = NULL;
    }
    pthread_mutex_unlock(&mutex);
  }
  free(block);
}

char* mosquitto__strdup(const char* text) {
  const size_t bytes = strlen(text) + 1;
  char* const copy = mosquitto__malloc(bytes);
  return copy == NULL ? NULL : memcpy(copy, text, bytes);
}
