/* The pairs of neighbours that may be merged: a heap with the least rank on top, of equals the leftmost. */
#ifndef WN_TEXT_HEAP_H
#define WN_TEXT_HEAP_H

#include "base/alloc.h"
#include "text/tokenizer.h"

struct wn_candidate {
  uint32_t rank;
  int32_t at, left, right; /* the left symbol, and what tells whether the pair is still that which was queued */
};
struct wn_heap { /* {0} is empty */
  struct wn_candidate *all;
  size_t count, room;
};

static inline bool wn_candidate_before(const struct wn_candidate *a, const struct wn_candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static inline wn_status wn_heap_push(struct wn_heap *h, struct wn_candidate c) {
  size_t i = h->count;
  const wn_status status = i < h->room ? WN_OK : WN_GROW(NULL, "tokenizer", &h->all, i, 1, &h->room);
  if (status != WN_OK) return status;
  h->count++;
  for (; i > 0 && wn_candidate_before(&c, &h->all[(i - 1) / 2]); i = (i - 1) / 2) h->all[i] = h->all[(i - 1) / 2];
  h->all[i] = c;
  return WN_OK;
}

/* The heap is not empty. */
static inline struct wn_candidate wn_heap_pop(struct wn_heap *h) {
  const struct wn_candidate top = h->all[0], last = h->all[--h->count];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < h->count; i = child) {
    if (child + 1 < h->count && wn_candidate_before(&h->all[child + 1], &h->all[child])) child++;
    if (!wn_candidate_before(&h->all[child], &last)) break;
    h->all[i] = h->all[child];
  }
  if (h->count) h->all[i] = last;
  return top;
}

#endif
