/* How a SentencePiece model file is encoded: the fields of a protobuf (sentencepiece_model.proto), and the double array
 * of its normalisation rules. spm_check.c checks every byte of both before anything else uses them. */
#ifndef WN_TEXT_SPM_WIRE_H
#define WN_TEXT_SPM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum wn_spm_piece_type {
  WN_PIECE_NORMAL = 1,
  WN_PIECE_UNKNOWN,
  WN_PIECE_CONTROL,
  WN_PIECE_USER_DEFINED,
  WN_PIECE_UNUSED,
  WN_PIECE_BYTE
};

/* One field of a protobuf message. */
struct wn_wire_field {
  uint32_t number;
  int wire;            /* 0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes */
  uint64_t value;      /* wire 0, 1, 5 */
  const uint8_t *data; /* wire 2 */
  size_t bytes;
};

struct wn_wire {
  const uint8_t *p, *end;
};

/* The message inside a field; empty if the field is absent. */
static inline struct wn_wire wn_wire_in(const struct wn_wire_field *f) {
  return (struct wn_wire){f->data, f->bytes > 0 ? f->data + f->bytes : f->data};
}

static inline bool wn_wire_varint(struct wn_wire *r, uint64_t *out) {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (r->p == r->end) return false;
    uint8_t byte = *r->p++;
    if (shift < 64) value |= (uint64_t)(byte & 0x7F) << shift;
    if (!(byte & 0x80)) {
      *out = value;
      return true;
    }
  }
  return false;
}

static inline bool wn_wire_fixed(struct wn_wire *r, int bytes, uint64_t *out) {
  if (r->end - r->p < bytes) return false;
  *out = 0;
  for (int i = 0; i < bytes; i++) *out |= (uint64_t)r->p[i] << (8 * i);
  r->p += bytes;
  return true;
}

static inline bool wn_wire_next(struct wn_wire *r, struct wn_wire_field *f) {
  uint64_t tag, length;
  if (!wn_wire_varint(r, &tag) || tag > UINT32_MAX || tag >> 3 == 0) return false;
  f->number = (uint32_t)(tag >> 3);
  f->wire = (int)(tag & 7);
  f->data = NULL;
  f->bytes = 0;
  f->value = 0;
  switch (f->wire) {
  case 0:
    return wn_wire_varint(r, &f->value);
  case 1:
    return wn_wire_fixed(r, 8, &f->value);
  case 2:
    if (!wn_wire_varint(r, &length) || length > (uint64_t)(r->end - r->p)) return false;
    f->data = r->p;
    f->bytes = (size_t)length;
    r->p += length;
    return true;
  case 5:
    return wn_wire_fixed(r, 4, &f->value);
  default: /* groups: SentencePiece has none */
    return false;
  }
}

/* The double array. A node's unit gives the offset of its children: child = (node ^ offset) ^ byte, valid if the
 * child's label is that byte. With the leaf bit set, (node ^ offset) holds the value. */
struct wn_spm_trie {
  const uint8_t *units; /* [count] 32-bit, little-endian */
  size_t count;
  const uint8_t *text; /* [text_bytes] replacement strings, each ends with a NUL */
  size_t text_bytes;
};

static inline uint32_t wn_spm_trie_unit(const struct wn_spm_trie *t, size_t i) {
  const uint8_t *u = t->units + 4 * i;
  return (uint32_t)u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}
static inline size_t wn_spm_trie_block(const struct wn_spm_trie *t, size_t node) {
  uint32_t unit = wn_spm_trie_unit(t, node);
  return node ^ (size_t)((unit >> 10) << ((unit & 0x200) >> 6));
}

#endif
