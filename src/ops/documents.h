/* Iterates over the documents of a batch: whole sequences, or the parts that doc_start divides them into. Padding at a
 * sequence's end belongs to no document. */
#ifndef WN_OPS_DOCUMENTS_H
#define WN_OPS_DOCUMENTS_H

#include <stdbool.h>
#include <stdint.h>

/* A batch of B sequences of T rows. */
struct wn_documents {
  int64_t B, T;
  const int32_t *doc_start; /* [B,T] or NULL: each sequence is one document */
  const int32_t *count;     /* [B] rows that are tokens; the rest is padding; NULL: T */
};

/* Document [first,end) of sequence b. */
struct wn_document {
  int64_t b, first, end;
};

/* Moves to the next document; start with {0}. False: there is none. */
static inline bool wn_document_next(const struct wn_documents *r, struct wn_document *d) {
  for (int64_t t = d->end; d->b < r->B; d->b++, t = 0) {
    const int64_t count = r->count ? r->count[d->b] : r->T;
    const int32_t *start = r->doc_start ? r->doc_start + d->b * r->T : 0;
    if (t >= count) continue;
    d->first = t++;
    while (t < count && (!start || start[t] == start[d->first])) t++;
    d->end = t;
    return true;
  }
  return false;
}

static inline int64_t wn_documents_count(const struct wn_documents *rows) {
  int64_t n = 0;
  for (struct wn_document d = {0}; wn_document_next(rows, &d);) n++;
  return n;
}

#endif
