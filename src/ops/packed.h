/* A weight matrix in its file's storage type: up to three runs of rows (q, k, v or gate, up), each with its own type.
 * Operations read the blocks in place; the matrix is never converted to floats as a whole. */
#ifndef WN_OPS_PACKED_H
#define WN_OPS_PACKED_H

#include "winnow/gguf.h"

#define WN_PACKED_PARTS 3
struct wn_packed_part {
  wn_gguf_type type;
  int64_t rows;
  const void *data;   /* [rows][K / weights per block] blocks, borrowed (mapped from the file); need no alignment */
  const void *strips; /* the same weights in the backend's own order (struct wn_backend), borrowed, aligned to WN_ALIGN;
                       * NULL: none. Products have the same bits either way */
};
struct wn_packed {
  int count; /* number of parts; 0: the matrix is dense */
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

/* Row n of a matrix of K columns; *type: its type. */
static inline const char *wn_packed_row(const struct wn_packed *p, int64_t K, int64_t n, wn_gguf_type *type) {
  int i = 0;
  while (i < p->count - 1 && n >= p->part[i].rows) n -= p->part[i++].rows;
  *type = p->part[i].type;
  return (const char *)p->part[i].data + (size_t)n * wn_packed_row_bytes(*type, K);
}

#endif
