/* A weight matrix as a file has it: up to three runs of rows (q, k, v or gate, up), each in its own storage type. The
 * operations that take one read the blocks where they lie; nothing is turned into floats as a whole. */
#ifndef WN_OPS_PACKED_H
#define WN_OPS_PACKED_H

#include "winnow/gguf.h"

#define WN_PACKED_PARTS 3
struct wn_packed_part {
  wn_gguf_type type;
  int64_t rows;
  const void *data;   /* [rows][K / block weights] blocks, borrowed (mapped from the file); no alignment is needed */
  const void *strips; /* the same weights in an order of the backend's own (struct wn_backend), borrowed, aligned to
                         WN_ALIGN; NULL: none. Products have the same bits with it and without */
};
struct wn_packed {
  int count; /* parts; 0: the matrix is dense */
  struct wn_packed_part part[WN_PACKED_PARTS];
};

/* Bytes of a row of K weights. */
static inline size_t wn_packed_row_bytes(wn_gguf_type type, int64_t K) {
  return (size_t)(K / wn_gguf_block_weights(type)) * wn_gguf_block_bytes(type);
}

/* Bytes of a part of a matrix of K columns. */
static inline size_t wn_packed_part_bytes(const struct wn_packed_part *part, int64_t K) {
  return (size_t)part->rows * wn_packed_row_bytes(part->type, K);
}

/* Row n of a matrix of K columns, and its type. */
static inline const char *wn_packed_row(const struct wn_packed *p, int64_t K, int64_t n, wn_gguf_type *type) {
  int i = 0;
  while (i < p->count - 1 && n >= p->part[i].rows) n -= p->part[i++].rows;
  *type = p->part[i].type;
  return (const char *)p->part[i].data + (size_t)n * wn_packed_row_bytes(*type, K);
}

#endif
