#include "attention/memory_loss.h"

#include <string.h>

/* Document [first,end) of sequence b. */
struct document {
  int64_t b, first, end;
};

/* The next one; {0} begins. False: there is none. */
static bool document_next(const struct wn_memory_rows *r, struct document *d) {
  for (int64_t t = d->end; d->b < r->B; d->b++, t = 0) {
    const int64_t count = r->count ? r->count[d->b] : r->T;
    const int32_t *start = r->doc_start ? r->doc_start + d->b * r->T : NULL;
    if (t >= count) continue;
    d->first = t++;
    while (t < count && (!start || start[t] == start[d->first])) t++;
    d->end = t;
    return true;
  }
  return false;
}

static double memory_element(wn_dtype dtype, const void *M, int64_t i) {
  return dtype == WN_F64 ? ((const double *)M)[i] : (double)((const float *)M)[i];
}

/* The first of its longest rows, in the row of M that begins at `at`. */
static int64_t document_longest(const struct document *d, wn_dtype dtype, const void *M, int64_t at) {
  int64_t longest = d->first;
  for (int64_t t = d->first + 1; t < d->end; t++)
    if (memory_element(dtype, M, at + t) > memory_element(dtype, M, at + longest)) longest = t;
  return longest;
}

int64_t wn_memory_documents(const struct wn_memory_rows *rows) {
  int64_t n = 0;
  for (struct document d = {0}; document_next(rows, &d);) n++;
  return n;
}

double wn_memory_loss(const struct wn_memory_rows *rows, wn_dtype dtype, const void *M) {
  double sum = 0;
  for (struct document d = {0}; document_next(rows, &d);)
    for (int64_t g = 0; g < rows->G; g++) {
      const int64_t at = (d.b * rows->G + g) * rows->T;
      sum += memory_element(dtype, M, at + document_longest(&d, dtype, M, at)) / (double)(d.end - d.first);
    }
  return sum;
}

void wn_memory_loss_gradient(const struct wn_memory_rows *rows, wn_dtype dtype, double coef, void *M) {
  int64_t done = 0; /* elements of M up to here are gradients: documents come in order, selection by selection */
  for (int64_t b = 0; b < rows->B; b++)
    for (int64_t g = 0; g < rows->G; g++) {
      const struct wn_memory_rows one = {.B = 1,
                                         .G = 1,
                                         .T = rows->T,
                                         .doc_start = rows->doc_start ? rows->doc_start + b * rows->T : NULL,
                                         .count = rows->count ? rows->count + b : NULL};
      for (struct document d = {0}; document_next(&one, &d);) {
        const int64_t longest = document_longest(&d, dtype, M, done);
        for (int64_t t = d.first; t < d.end; t++) {
          const double value = t == longest ? coef / (double)(d.end - d.first) : 0;
          if (dtype == WN_F64)
            ((double *)M)[done + t] = value;
          else
            ((float *)M)[done + t] = (float)value;
        }
      }
      const int64_t real = rows->count ? rows->count[b] : rows->T;
      memset((char *)M + (size_t)(done + real) * wn_dtype_size(dtype), 0,
             (size_t)(rows->T - real) * wn_dtype_size(dtype));
      done += rows->T;
    }
}
