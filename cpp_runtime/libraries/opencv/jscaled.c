/* Decodes a baseline JPEG at a part of its size, whose coefficients are mostly thrown away: at 1/8
 * only the first of each block of brightness counts, but each of the others has to be read to find
 * the next block.
 *
 * libjpeg-turbo (jdhuff.c and jdcoefct.c, which are a part of this file) looks at one code at a
 * time, 42 instructions each on ARMv7, and takes each block through memory. Here a table says of
 * the next 12 bits how many whole coefficients lie in them, and a block whose first coefficient
 * alone counts is a pixel at once. Pixels, and the reading of damaged files, are libjpeg-turbo's:
 * whatever is not plain goes to it, with nothing of the MCU taken. */
#define jinit_huff_decoder edgepack_init_codes
#define jinit_d_coef_controller edgepack_init_blocks
#include "jdhuff.c"
#include "jdcoefct.c"
#undef jinit_huff_decoder
#undef jinit_d_coef_controller

#include <stdint.h>

#include "jdct.h"

/* Bits that the tables are indexed by: of coefficients whose value counts, and of others. What an
 * entry of the latter takes off may be longer, as a code is followed by the bits of a value, which
 * nobody looks at; the buffer has at least LEAST when it is asked. */
#define READ_LOOK 10
#define SKIP_LOOK 12
#define LEAST 16

/* Entries: how many bits to take off; how many coefficients they are for, zeros among them, END more
 * if the last of the codes ends the block; and the value of the last one. TOO_LONG coefficients, with
 * which no block goes on, stand for codes that are too long. */
#define TAKEN(entry) ((int)((entry)&0xFF))
#define COEFFICIENTS(entry) ((int)((entry) >> 8 & 0xFF))
#define VALUE(entry) ((entry) >> 16)
#define END 128
#define TOO_LONG DCTSIZE2

/* What is needed of a block of the MCU. */
typedef struct {
  const int32_t *first; /* of 1 << READ_LOOK entries */
  const int32_t *read;  /* the same of other coefficients; NULL if they do not count */
  const uint16_t *skip; /* of 1 << SKIP_LOOK entries; NULL if they count */
  const d_derived_tbl *dc, *ac;
  int component; /* of the scan; -1 if it is not wanted */
  int x, y;      /* where its pixels are among those of the MCU in its component */

  /* For one row of MCUs: */
  JSAMPARRAY rows;   /* where the first of them begins */
  int width, factor; /* pixels from one to the next MCU; of the first coefficient */
} block_plan;

typedef struct {
  huff_entropy_decoder whole; /* libjpeg-turbo's, first: cinfo->entropy points to both */
  int32_t *firsts[NUM_HUFF_TBLS], *reads[NUM_HUFF_TBLS];
  uint16_t *skips[NUM_HUFF_TBLS];
  boolean skipping;
  block_plan blocks[D_MAX_BLOCKS_IN_MCU];
} skip_decoder;

/* The bits to come, the next one highest, and the bytes after them. */
typedef struct {
  bit_buf_type buffer;
  int lacking; /* bits up to LEAST; negative if there are more */
  const JOCTET *next;
} bit_reader;

static inline void take(bit_reader *bits, int n) {
  bits->buffer <<= n;
  bits->lacking += n;
}

/* At least LEAST bits, by bytes of which one may be 0xFF. FALSE at a marker. */
static __attribute__((noinline)) boolean fill_slowly(bit_reader *bits) {
  while (bits->lacking > 0) {
    bit_buf_type byte = *bits->next++;
    if (byte == 0xFF && *bits->next++ != 0) return FALSE;
    bits->buffer |= byte << (BIT_BUF_SIZE - 8 - LEAST + bits->lacking);
    bits->lacking -= 8;
  }
  return TRUE;
}

static inline boolean fill(bit_reader *bits) {
  if (bits->lacking <= 0) return TRUE;
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
  bits->buffer |= (bit_buf_type)word << (32 - LEAST + bits->lacking);
  bits->lacking -= 32;
  bits->next += 4;
#else
  unsigned int first = bits->next[0], second = bits->next[1];
  if (first == 0xFF || second == 0xFF) {
    bit_reader copy = *bits; /* whose address is taken, so that the other stays in registers */
    if (!fill_slowly(&copy)) return FALSE;
    *bits = copy;
    return TRUE;
  }
  bits->buffer |= (bit_buf_type)(first << 8 | second) << bits->lacking;
  bits->lacking -= 16;
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
static inline boolean skip_block(bit_reader *bits, const block_plan *plan) {
  const uint16_t *skip = plan->skip;
  for (int k = 1;;) {
    if (!fill(bits)) return FALSE;
    unsigned int entry = skip[bits->buffer >> (BIT_BUF_SIZE - SKIP_LOOK)];
    k += COEFFICIENTS(entry);
    if (k < DCTSIZE2) {
      take(bits, TAKEN(entry));
      continue;
    }
    if (k >= END && k < END + DCTSIZE2) {
      take(bits, TAKEN(entry));
      return TRUE;
    }
    /* Too long, or the block may be full before the last of these codes. */
    int symbol = decode(bits, plan->ac);
    if (symbol < 0) return FALSE;
    int size = symbol & 15, run = symbol >> 4;
    if (size == 0 && run != 15) return TRUE;
    if (!fill(bits)) return FALSE;
    take(bits, size);
    k += run + 1 - COEFFICIENTS(entry);
    if (k >= DCTSIZE2) return TRUE;
  }
}

/* The coefficients of a block after the first. FALSE: this is for libjpeg-turbo. */
static inline boolean read_block(bit_reader *bits, const block_plan *plan, JCOEF *block) {
  const int *order = jpeg_natural_order - 1; /* which has room for k up to 80 */
  const int32_t *read = plan->read;
  for (int k = 1;;) {
    if (!fill(bits)) return FALSE;
    int entry = read[bits->buffer >> (BIT_BUF_SIZE - READ_LOOK)], coefficient = VALUE(entry);
    k += COEFFICIENTS(entry);
    if (COEFFICIENTS(entry) != TOO_LONG) {
      take(bits, TAKEN(entry));
      if (k >= END) return TRUE;
    } else {
      int symbol = decode(bits, plan->ac);
      if (symbol < 0) return FALSE;
      int size = symbol & 15, run = symbol >> 4;
      if (size == 0 && run != 15) return TRUE;
      coefficient = 0;
      if (size != 0 && !value(bits, size, &coefficient)) return FALSE;
      k += run + 1 - TOO_LONG;
    }
    block[order[k]] = (JCOEF)coefficient;
    if (k >= DCTSIZE2) return TRUE;
  }
}

/* Where the pixels of a block begin, in a row of its own, of the MCU in `column`. */
static inline JSAMPROW place(const block_plan *plan, int row, JDIMENSION column) {
  return plan->rows[row] + column * plan->width + plan->x;
}

/* The pixel that a block is of which only the first coefficient counts: jpeg_idct_1x1's. */
static inline JSAMPLE mean(const JSAMPLE *limit, const block_plan *plan, int coefficient) {
  return limit[DESCALE((JCOEF)coefficient * plan->factor, 3) & RANGE_MASK];
}

/* Pixels of a block of the MCU in `column` of the row. */
static void transform(j_decompress_ptr cinfo, const block_plan *plan, JBLOCKROW block,
                      JDIMENSION column) {
  jpeg_component_info *info = cinfo->cur_comp_info[plan->component];
  cinfo->idct->_inverse_DCT[info->component_index](cinfo, info, *block, plan->rows,
                                                   column * plan->width + plan->x);
}

/* Reads an MCU, and writes its pixels. FALSE: this is for libjpeg-turbo. */
#if defined(__has_feature)
#if __has_feature(undefined_behavior_sanitizer)
__attribute__((no_sanitize("signed-integer-overflow"), no_sanitize("unsigned-integer-overflow")))
#endif
#endif
static inline boolean decode_pixels(j_decompress_ptr cinfo, bit_reader *bits, int *last,
                                    JBLOCKROW block, JDIMENSION column) {
  const skip_decoder *entropy = (const skip_decoder *)cinfo->entropy;
  const JSAMPLE *limit = IDCT_range_limit(cinfo);
  const block_plan *plan = entropy->blocks, *end = plan + cinfo->blocks_in_MCU;
  for (; plan != end; ++plan) {
    if (!fill(bits)) return FALSE;
    int entry = plan->first[bits->buffer >> (BIT_BUF_SIZE - READ_LOOK)];
    int difference = VALUE(entry);
    if (COEFFICIENTS(entry) != TOO_LONG) {
      take(bits, TAKEN(entry));
    } else {
      int size = decode(bits, plan->dc);
      if (size < 0) return FALSE;
      difference = 0;
      if (size > 0 && !value(bits, size, &difference)) return FALSE;
    }
    if (plan->component >= 0) difference = last[plan->component] += difference;
    if (plan->skip != NULL) {
      if (plan->component >= 0) *place(plan, 0, column) = mean(limit, plan, difference);
      if (!skip_block(bits, plan)) return FALSE;
    } else {
      jzero_far(block, sizeof(JBLOCK));
      **block = (JCOEF)difference;
      if (!read_block(bits, plan, *block)) return FALSE;
      transform(cinfo, plan, block, column);
    }
  }
  return TRUE;
}

/* As many MCUs as are plain, of those from `column` to `end`; returns how many. */
LOCAL(JDIMENSION) decode_run(j_decompress_ptr cinfo, JBLOCKROW block, JDIMENSION column,
                             JDIMENSION end) {
  huff_entropy_ptr entropy = (huff_entropy_ptr)cinfo->entropy;
  struct jpeg_source_mgr *source = cinfo->src;
  /* BUFSIZE is more than a block can have: 64 times a code of 16 bits and a value of 15, and as
   * many zeros after bytes of 0xFF. What fill() reads ahead fits between. */
  const size_t most = BUFSIZE * (size_t)cinfo->blocks_in_MCU;
  if (cinfo->unread_marker != 0 || entropy->pub.insufficient_data ||
      source->bytes_in_buffer < most) {
    return 0;
  }
  const JOCTET *enough = source->next_input_byte + (source->bytes_in_buffer - most);
  if (cinfo->restart_interval != 0) end = MIN(end, column + entropy->restarts_to_go);
  int left = entropy->bitstate.bits_left;
  bit_reader bits = {0, LEAST - left, source->next_input_byte};
  if (left > 0) bits.buffer = entropy->bitstate.get_buffer << (BIT_BUF_SIZE - left);
  JDIMENSION begin = column;
  for (; column < end && bits.next <= enough; ++column) {
    bit_reader now = bits;
    savable_state state = entropy->saved;
    if (!decode_pixels(cinfo, &now, state.last_dc_val, block, column)) break;
    bits = now;
    entropy->saved = state;
  }
  left = LEAST - bits.lacking;
  entropy->bitstate.bits_left = left;
  entropy->bitstate.get_buffer = left > 0 ? bits.buffer >> (BIT_BUF_SIZE - left) : 0;
  source->bytes_in_buffer -= (size_t)(bits.next - source->next_input_byte);
  source->next_input_byte = bits.next;
  if (cinfo->restart_interval != 0) entropy->restarts_to_go -= column - begin;
  return column - begin;
}

/* A row of MCUs but for the last of them, or what is left of it. FALSE if the source has no more for
 * the moment. */
LOCAL(boolean) decompress_row(j_decompress_ptr cinfo, JSAMPIMAGE output) {
  my_coef_ptr coef = (my_coef_ptr)cinfo->coef;
  skip_decoder *entropy = (skip_decoder *)cinfo->entropy;
  for (int number = 0; number < cinfo->blocks_in_MCU; ++number) {
    block_plan *plan = &entropy->blocks[number];
    if (plan->component < 0) continue;
    const jpeg_component_info *info = cinfo->cur_comp_info[plan->component];
    plan->rows = output[info->component_index] + plan->y;
    plan->width = info->MCU_sample_width;
    plan->factor = *(const ISLOW_MULT_TYPE *)info->dct_table;
  }
  const JDIMENSION last = cinfo->MCUs_per_row - 1;
  while (coef->MCU_ctr < last) {
    if (!entropy->whole.pub.insufficient_data) {
      cinfo->master->last_good_iMCU_row = cinfo->input_iMCU_row;
    }
    coef->MCU_ctr += decode_run(cinfo, coef->MCU_buffer[0], coef->MCU_ctr, last);
    if (coef->MCU_ctr == last) break;
    jzero_far(coef->MCU_buffer[0], cinfo->blocks_in_MCU * sizeof(JBLOCK));
    if (!decode_mcu(cinfo, coef->MCU_buffer)) return FALSE;
    for (int number = 0; number < cinfo->blocks_in_MCU; ++number) {
      const block_plan *plan = &entropy->blocks[number];
      if (plan->component >= 0) transform(cinfo, plan, coef->MCU_buffer[number], coef->MCU_ctr);
    }
    ++coef->MCU_ctr;
  }
  return TRUE;
}

METHODDEF(int) decompress_scaled(j_decompress_ptr cinfo, JSAMPIMAGE output) {
  const my_coef_ptr coef = (my_coef_ptr)cinfo->coef;
  const boolean inside = cinfo->input_iMCU_row + 1 < cinfo->total_iMCU_rows &&
                         coef->MCU_rows_per_iMCU_row == 1 && cinfo->master->first_iMCU_col == 0 &&
                         cinfo->master->last_iMCU_col + 1 >= cinfo->MCUs_per_row;
  if (inside && ((skip_decoder *)cinfo->entropy)->skipping && !decompress_row(cinfo, output)) {
    return JPEG_SUSPENDED;
  }
  return decompress_onepass(cinfo, output);
}

/* The symbol at the head of the lowest `count` bits of `look`, and its length; -1 if they end
 * first. */
LOCAL(int) find_symbol(const d_derived_tbl *table, unsigned int look, int count, int *length) {
  *length = 1;
  if (count >= HUFF_LOOKAHEAD) {
    int entry = table->lookup[look >> (count - HUFF_LOOKAHEAD) & ((1 << HUFF_LOOKAHEAD) - 1)];
    *length = entry >> HUFF_LOOKAHEAD;
    if (*length <= HUFF_LOOKAHEAD) return entry & ((1 << HUFF_LOOKAHEAD) - 1);
  }
  for (; *length <= count; ++*length) {
    JLONG code = (JLONG)(look >> (count - *length)) & ((1 << *length) - 1);
    if (code <= table->maxcode[*length]) {
      return table->pub->huffval[(code + table->valoffset[*length]) & 0xFF];
    }
  }
  return -1;
}

/* For first coefficients, whose code is the size of a difference, or for others. */
LOCAL(void) fill_reads(const d_derived_tbl *table, boolean first, int32_t *entries) {
  for (unsigned int look = 0; look < 1u << READ_LOOK; ++look) {
    int length, symbol = find_symbol(table, look, READ_LOOK, &length);
    int size = symbol & 15, run = first ? 0 : symbol >> 4, coefficients = run + 1, value = 0;
    if (symbol < 0 || length + size > READ_LOOK) {
      coefficients = TOO_LONG;
    } else if (size > 0) {
      int plain = (int)(look >> (READ_LOOK - length - size)) & ((1 << size) - 1);
      value = HUFF_EXTEND(plain, size);
    } else if (!first && run != 15) {
      coefficients = END;
    }
    entries[look] = value * (1 << 16) + (coefficients << 8) + length + size;
  }
}

LOCAL(void) fill_skips(const d_derived_tbl *table, uint16_t *entries) {
  for (unsigned int look = 0; look < 1u << SKIP_LOOK; ++look) {
    unsigned int entry = TOO_LONG << 8;
    int taken = 0, coefficients = 0, length, symbol;
    boolean end = FALSE;
    while (!end && taken < SKIP_LOOK) {
      if ((symbol = find_symbol(table, look, SKIP_LOOK - taken, &length)) < 0) break;
      int size = symbol & 15, run = symbol >> 4;
      end = size == 0 && run != 15;
      taken += length + size;
      if (!end) coefficients += run + 1;
      if (taken > LEAST || coefficients >= DCTSIZE2) break;
      entry = (unsigned int)(taken | (coefficients + (end ? END : 0)) << 8);
    }
    entries[look] = (uint16_t)entry;
  }
}

/* A table of the image, which later scans use again. */
LOCAL(void *) need(j_decompress_ptr cinfo, void *table, size_t bytes) {
  if (table != NULL) return table;
  return (*cinfo->mem->alloc_small)((j_common_ptr)cinfo, JPOOL_IMAGE, bytes);
}

LOCAL(void) plan_blocks(j_decompress_ptr cinfo) {
  skip_decoder *entropy = (skip_decoder *)cinfo->entropy;
  for (int component = 0, number = 0; component < cinfo->comps_in_scan; ++component) {
    const jpeg_component_info *info = cinfo->cur_comp_info[component];
    const int dc = info->dc_tbl_no, ac = info->ac_tbl_no, size = info->_DCT_scaled_size;
    const boolean counts = entropy->whole.ac_needed[number];
    int32_t **first = &entropy->firsts[dc], **read = &entropy->reads[ac];
    uint16_t **skip = &entropy->skips[ac];
    *first = (int32_t *)need(cinfo, *first, sizeof(**first) << READ_LOOK);
    fill_reads(entropy->whole.dc_derived_tbls[dc], TRUE, *first);
    if (counts) {
      *read = (int32_t *)need(cinfo, *read, sizeof(**read) << READ_LOOK);
      fill_reads(entropy->whole.ac_derived_tbls[ac], FALSE, *read);
    } else {
      *skip = (uint16_t *)need(cinfo, *skip, sizeof(**skip) << SKIP_LOOK);
      fill_skips(entropy->whole.ac_derived_tbls[ac], *skip);
    }
    for (int block = 0; block < info->MCU_blocks; ++block, ++number) {
      entropy->blocks[number] = (block_plan){
          .first = *first,
          .read = counts ? *read : NULL,
          .skip = counts ? NULL : *skip,
          .dc = entropy->whole.dc_derived_tbls[dc],
          .ac = entropy->whole.ac_derived_tbls[ac],
          .component = info->component_needed ? component : -1,
          .x = block % info->MCU_width * size,
          .y = block / info->MCU_width * size,
      };
    }
  }
}

METHODDEF(void) start_pass_skipping(j_decompress_ptr cinfo) {
  skip_decoder *entropy = (skip_decoder *)cinfo->entropy;
  start_pass_huff_decoder(cinfo);
  entropy->skipping = FALSE;
  if (cinfo->coef->_decompress_data != decompress_scaled) return;
  for (int number = 0; number < cinfo->blocks_in_MCU; ++number) {
    if (!entropy->whole.ac_needed[number]) entropy->skipping = TRUE;
  }
  if (entropy->skipping) plan_blocks(cinfo);
}

/* In the place of libjpeg-turbo's functions of these names. */
EXTERN(void) jinit_huff_decoder(j_decompress_ptr cinfo);
EXTERN(void) jinit_d_coef_controller(j_decompress_ptr cinfo, boolean need_full_buffer);

GLOBAL(void) jinit_huff_decoder(j_decompress_ptr cinfo) {
  edgepack_init_codes(cinfo);
  skip_decoder *entropy = (skip_decoder *)(*cinfo->mem->alloc_small)(
      (j_common_ptr)cinfo, JPOOL_IMAGE, sizeof(skip_decoder));
  memset(entropy, 0, sizeof(*entropy));
  entropy->whole = *(huff_entropy_ptr)cinfo->entropy;
  entropy->whole.pub.start_pass = start_pass_skipping;
  cinfo->entropy = &entropy->whole.pub;
}

GLOBAL(void) jinit_d_coef_controller(j_decompress_ptr cinfo, boolean need_full_buffer) {
  edgepack_init_blocks(cinfo, need_full_buffer);
  const boolean baseline = !need_full_buffer && !cinfo->progressive_mode && !cinfo->arith_code;
  if (baseline) cinfo->coef->_decompress_data = decompress_scaled;
}
