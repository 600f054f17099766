/* Reads a baseline JPEG whose coefficients are mostly thrown away: of a photo at 1/8 of its size
 * only the first of each block counts, but each of the others has to be read to find the next
 * block.
 *
 * libjpeg-turbo's decoder (jdhuff.c, a part of this file) looks at one code at a time, 42
 * instructions each on ARMv7. Here a table says of the next 12 bits how many whole coefficients lie
 * in them. The values and the reading of damaged files are libjpeg-turbo's: whatever is not plain
 * goes to it, with nothing of the MCU taken. */
#define jinit_huff_decoder edgepack_init_whole
#include "jdhuff.c"
#undef jinit_huff_decoder

#include <stdint.h>

/* Bits that the tables are indexed by: for first coefficients, and for others. What an entry of the
 * latter takes off may be longer, as a code is followed by the bits of a value, which nobody looks
 * at; the buffer has at least LEAST when it is asked. */
#define FIRST_LOOK 10
#define LOOK 12
#define LEAST 16

/* Entries: how many bits to take off, how many coefficients they are for, and whether the last of
 * the codes ends the block. TOO_LONG, after which a block is always full, stands for codes that are
 * too long. */
#define TAKEN(entry) ((entry)&0x1F)
#define COEFFICIENTS(entry) (((entry) >> 8) & 0x7F)
#define END 0x8000
#define TOO_LONG (0x7F << 8)

/* Of a first coefficient: bits to take off, 0 if they are too many, and its difference above them.
 */
#define DIFFERENCE(entry) ((entry) >> 5)

/* What is needed of a block of the MCU. */
typedef struct {
  const int16_t *first; /* 1 << FIRST_LOOK entries */
  const uint16_t *skip; /* 1 << LOOK entries; NULL if its coefficients count */
  const d_derived_tbl *dc, *ac;
  int component; /* -1 if it is not wanted at all */
} block_codes;

typedef struct {
  huff_entropy_decoder whole; /* libjpeg-turbo's, first: cinfo->entropy points to both */
  int16_t *firsts[NUM_HUFF_TBLS];
  uint16_t *skips[NUM_HUFF_TBLS];
  block_codes blocks[D_MAX_BLOCKS_IN_MCU];
} skip_decoder;

/* The bits to come, the next one highest, and the bytes after them. */
typedef struct {
  bit_buf_type buffer;
  int count;
  const JOCTET *next;
} bit_reader;

static inline void take(bit_reader *bits, int n) {
  bits->buffer <<= n;
  bits->count -= n;
}

/* At least LEAST bits, by bytes of which one may be 0xFF. FALSE at a marker. */
static __attribute__((noinline)) boolean fill_slowly(bit_reader *bits) {
  while (bits->count < LEAST) {
    bit_buf_type byte = *bits->next++;
    if (byte == 0xFF && *bits->next++ != 0) return FALSE;
    bits->buffer |= byte << (BIT_BUF_SIZE - 8 - bits->count);
    bits->count += 8;
  }
  return TRUE;
}

static inline boolean fill(bit_reader *bits) {
  if (bits->count >= LEAST) return TRUE;
#if BIT_BUF_SIZE == 64
  uint32_t word;
  memcpy(&word, bits->next, sizeof(word));
  word = __builtin_bswap32(word);
  if ((~word - 0x01010101u) & word & 0x80808080u) { /* a byte is 0xFF */
    bit_reader copy = *bits;
    if (!fill_slowly(&copy)) return FALSE;
    *bits = copy;
    return TRUE;
  }
  bits->buffer |= (bit_buf_type)word << (32 - bits->count);
  bits->count += 32;
  bits->next += 4;
#else
  unsigned int first = bits->next[0], second = bits->next[1];
  if (first == 0xFF || second == 0xFF) {
    bit_reader copy = *bits; /* whose address is taken, so that the other stays in registers */
    if (!fill_slowly(&copy)) return FALSE;
    *bits = copy;
    return TRUE;
  }
  bits->buffer |= (bit_buf_type)(first << 8 | second) << (16 - bits->count);
  bits->count += 16;
  bits->next += 2;
#endif
  return TRUE;
}

/* A symbol whose code is longer than libjpeg-turbo's table looks; -1 if there is no such code. */
static __attribute__((noinline)) int decode_long(bit_buf_type buffer, const d_derived_tbl *table,
                                                 int *length) {
  for (*length = HUFF_LOOKAHEAD + 1; *length <= 16; ++*length) {
    JLONG code = (JLONG)(buffer >> (BIT_BUF_SIZE - *length));
    if (code <= table->maxcode[*length]) {
      return table->pub->huffval[(code + table->valoffset[*length]) & 0xFF];
    }
  }
  return -1;
}

/* The next symbol of a table, with at least LEAST bits; -1 if there is no such code. */
static inline int decode(bit_reader *bits, const d_derived_tbl *table) {
  int entry = table->lookup[bits->buffer >> (BIT_BUF_SIZE - HUFF_LOOKAHEAD)];
  int length = entry >> HUFF_LOOKAHEAD, symbol = entry & ((1 << HUFF_LOOKAHEAD) - 1);
  if (length > HUFF_LOOKAHEAD) symbol = decode_long(bits->buffer, table, &length);
  take(bits, length);
  return symbol;
}

/* The next `size` bits, 1 to 15, as the value that they stand for. FALSE at a marker. */
static inline boolean value(bit_reader *bits, int size, int *result) {
  if (!fill(bits)) return FALSE;
  int plain = (int)(bits->buffer >> (BIT_BUF_SIZE - size));
  take(bits, size);
  *result = HUFF_EXTEND(plain, size);
  return TRUE;
}

/* Goes past the coefficients of a block after the first. FALSE: this is for libjpeg-turbo. */
static inline boolean skip_block(bit_reader *bits, const uint16_t *skip,
                                 const d_derived_tbl *table) {
  int k = 1;
  for (;;) {
    if (!fill(bits)) return FALSE;
    unsigned int entry = skip[bits->buffer >> (BIT_BUF_SIZE - LOOK)];
    int next = k + (int)COEFFICIENTS(entry);
    if (next < DCTSIZE2) {
      k = next;
      take(bits, (int)TAKEN(entry));
      if (entry & END) return TRUE;
      continue;
    }
    /* Too long, or the block may be full before the last of these codes. */
    int symbol = decode(bits, table);
    if (symbol < 0) return FALSE;
    int size = symbol & 15, run = symbol >> 4;
    if (size == 0 && run != 15) return TRUE;
    k += run + 1;
    if (!fill(bits)) return FALSE;
    take(bits, size);
    if (k >= DCTSIZE2) return TRUE;
  }
}

/* The coefficients of a block after the first. FALSE: this is for libjpeg-turbo. */
static inline boolean read_block(bit_reader *bits, const d_derived_tbl *table, JCOEF *block) {
  for (int k = 1; k < DCTSIZE2; ++k) {
    if (!fill(bits)) return FALSE;
    int symbol = decode(bits, table);
    if (symbol < 0) return FALSE;
    int size = symbol & 15, run = symbol >> 4, coefficient;
    if (size == 0) {
      if (run != 15) return TRUE;
      k += 15;
      continue;
    }
    k += run;
    if (!value(bits, size, &coefficient)) return FALSE;
    block[jpeg_natural_order[k]] = (JCOEF)coefficient; /* which has room for k up to 79 */
  }
  return TRUE;
}

#if defined(__has_feature)
#if __has_feature(undefined_behavior_sanitizer)
__attribute__((no_sanitize("signed-integer-overflow"), no_sanitize("unsigned-integer-overflow")))
#endif
#endif
LOCAL(boolean) decode_skipping(j_decompress_ptr cinfo, JBLOCKROW *MCU_data) {
  skip_decoder *entropy = (skip_decoder *)cinfo->entropy;
  savable_state state = entropy->whole.saved;
  bit_reader bits = {0, entropy->whole.bitstate.bits_left, cinfo->src->next_input_byte};
  if (bits.count > 0) {
    bits.buffer = entropy->whole.bitstate.get_buffer << (BIT_BUF_SIZE - bits.count);
  }
  const block_codes *codes = entropy->blocks, *end = codes + cinfo->blocks_in_MCU;
  for (; codes != end; ++codes, ++MCU_data) {
    if (!fill(&bits)) return FALSE;
    int entry = codes->first[bits.buffer >> (BIT_BUF_SIZE - FIRST_LOOK)];
    int difference = DIFFERENCE(entry);
    if (entry != 0) {
      take(&bits, (int)TAKEN(entry));
    } else {
      int size = decode(&bits, codes->dc);
      if (size < 0 || (size > 0 && !value(&bits, size, &difference))) return FALSE;
    }
    if (codes->component >= 0) {
      state.last_dc_val[codes->component] += difference;
      (**MCU_data)[0] = (JCOEF)state.last_dc_val[codes->component];
    }
    if (codes->skip != NULL) {
      if (!skip_block(&bits, codes->skip, codes->ac)) return FALSE;
    } else {
      if (!read_block(&bits, codes->ac, **MCU_data)) return FALSE;
    }
  }
  entropy->whole.saved = state;
  entropy->whole.bitstate.bits_left = bits.count;
  entropy->whole.bitstate.get_buffer =
      bits.count > 0 ? bits.buffer >> (BIT_BUF_SIZE - bits.count) : 0;
  cinfo->src->bytes_in_buffer -= (size_t)(bits.next - cinfo->src->next_input_byte);
  cinfo->src->next_input_byte = bits.next;
  return TRUE;
}

METHODDEF(boolean) decode_mcu_skipping(j_decompress_ptr cinfo, JBLOCKROW *MCU_data) {
  huff_entropy_ptr entropy = (huff_entropy_ptr)cinfo->entropy;
  /* BUFSIZE is more than a block can have: 64 times a code of 16 bits and a value of 15, and as
   * many zeros after bytes of 0xFF. What fill() reads ahead fits between. */
  if (MCU_data == NULL || cinfo->unread_marker != 0 || entropy->pub.insufficient_data ||
      (cinfo->restart_interval != 0 && entropy->restarts_to_go == 0) ||
      cinfo->src->bytes_in_buffer < BUFSIZE * (size_t)cinfo->blocks_in_MCU ||
      !decode_skipping(cinfo, MCU_data)) {
    return decode_mcu(cinfo, MCU_data);
  }
  if (cinfo->restart_interval != 0) --entropy->restarts_to_go;
  return TRUE;
}

/* The symbol at the head of the lowest `count` bits of `look`, and its length; -1 if they end
 * first. */
LOCAL(int) find_symbol(const d_derived_tbl *table, unsigned int look, int count, int *length) {
  for (*length = 1; *length <= count; ++*length) {
    JLONG code = (JLONG)(look >> (count - *length)) & ((1 << *length) - 1);
    if (code <= table->maxcode[*length]) {
      return table->pub->huffval[(code + table->valoffset[*length]) & 0xFF];
    }
  }
  return -1;
}

LOCAL(void) fill_first(const d_derived_tbl *table, int16_t *entries) {
  for (unsigned int look = 0; look < 1u << FIRST_LOOK; ++look) {
    int length, size = find_symbol(table, look, FIRST_LOOK, &length), difference = 0;
    entries[look] = 0;
    if (size < 0 || length + size > FIRST_LOOK) continue;
    if (size > 0) {
      int plain = (int)(look >> (FIRST_LOOK - length - size)) & ((1 << size) - 1);
      difference = HUFF_EXTEND(plain, size);
    }
    entries[look] = (int16_t)(difference * 32 + length + size);
  }
}

LOCAL(void) fill_skips(const d_derived_tbl *table, uint16_t *entries) {
  for (unsigned int look = 0; look < 1u << LOOK; ++look) {
    unsigned int entry = TOO_LONG;
    int taken = 0, coefficients = 0, length, symbol;
    while (!(entry & END) && taken < LOOK) {
      if ((symbol = find_symbol(table, look, LOOK - taken, &length)) < 0) break;
      int size = symbol & 15, run = symbol >> 4;
      boolean end = size == 0 && run != 15;
      taken += length + size;
      if (!end) coefficients += run + 1;
      if (taken > LEAST || coefficients >= DCTSIZE2) break;
      entry = (unsigned int)(taken | coefficients << 8) | (end ? END : 0);
    }
    entries[look] = (uint16_t)entry;
  }
}

/* A table of the image, which later scans use again. */
LOCAL(void *) need(j_decompress_ptr cinfo, void *table, int look) {
  if (table != NULL) return table;
  return (*cinfo->mem->alloc_small)((j_common_ptr)cinfo, JPOOL_IMAGE, sizeof(uint16_t) << look);
}

METHODDEF(void) start_pass_skipping(j_decompress_ptr cinfo) {
  skip_decoder *entropy = (skip_decoder *)cinfo->entropy;
  start_pass_huff_decoder(cinfo);
  entropy->whole.pub.decode_mcu = decode_mcu;
  boolean skipping = FALSE;
  for (int number = 0; number < cinfo->blocks_in_MCU; ++number) {
    if (!entropy->whole.ac_needed[number]) skipping = TRUE;
  }
  if (!skipping) return;
  entropy->whole.pub.decode_mcu = decode_mcu_skipping;
  for (int component = 0; component < cinfo->comps_in_scan; ++component) {
    const jpeg_component_info *info = cinfo->cur_comp_info[component];
    int dc = info->dc_tbl_no, ac = info->ac_tbl_no;
    entropy->firsts[dc] = (int16_t *)need(cinfo, entropy->firsts[dc], FIRST_LOOK);
    fill_first(entropy->whole.dc_derived_tbls[dc], entropy->firsts[dc]);
    entropy->skips[ac] = (uint16_t *)need(cinfo, entropy->skips[ac], LOOK);
    fill_skips(entropy->whole.ac_derived_tbls[ac], entropy->skips[ac]);
  }
  for (int number = 0; number < cinfo->blocks_in_MCU; ++number) {
    int component = cinfo->MCU_membership[number];
    const jpeg_component_info *info = cinfo->cur_comp_info[component];
    entropy->blocks[number] = (block_codes){
        .first = entropy->firsts[info->dc_tbl_no],
        .skip = entropy->whole.ac_needed[number] ? NULL : entropy->skips[info->ac_tbl_no],
        .dc = entropy->whole.dc_cur_tbls[number],
        .ac = entropy->whole.ac_cur_tbls[number],
        .component = entropy->whole.dc_needed[number] ? component : -1,
    };
  }
}

/* In the place of libjpeg-turbo's function of this name. */
EXTERN(void) jinit_huff_decoder(j_decompress_ptr cinfo);

GLOBAL(void) jinit_huff_decoder(j_decompress_ptr cinfo) {
  edgepack_init_whole(cinfo);
  skip_decoder *entropy = (skip_decoder *)(*cinfo->mem->alloc_small)(
      (j_common_ptr)cinfo, JPOOL_IMAGE, sizeof(skip_decoder));
  memset(entropy, 0, sizeof(*entropy));
  entropy->whole = *(huff_entropy_ptr)cinfo->entropy;
  entropy->whole.pub.start_pass = start_pass_skipping;
  cinfo->entropy = &entropy->whole.pub;
}
