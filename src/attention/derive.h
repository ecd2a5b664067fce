/* Views of an attention call: the same arrays, begun further on, with what the view has no use for dropped. They are
 * loops over one table (derive.c) that has a row for every field of struct wn_attention: what the field is of, and for
 * an array its axes. A field without a row fails tests/attention/test_derive.c.
 *
 * Every view is a forward call: notes for backward, results for inspection (F, M, counts), looks, dropout and gradients
 * are dropped; the caller sets again what it wants of them. */
#ifndef WN_ATTENTION_DERIVE_H
#define WN_ATTENTION_DERIVE_H

#include "base/arrays.h"
#include "ops/attention.h"
#include "ops/ops.h"

/* What a field is of; a view for one thing drops what comes after it. */
enum wn_call_scope {
  WN_CALL_SHAPE,     /* sizes, q, k, v, y and what every call has */
  WN_CALL_SELECTION, /* decides or holds F */
  WN_CALL_WEIGHTS,   /* decides or reads the weights, but not F */
  WN_CALL_OUTPUT,    /* decides y alone */
  WN_CALL_TRAINING   /* notes, results for inspection, looks, dropout, gradients */
};

enum wn_call_element {
  WN_CALL_NUMBER, /* no array */
  WN_CALL_REAL,   /* the call's dtype */
  WN_CALL_ROW,    /* the call's row_type */
  WN_CALL_KEY,    /* the same, or half floats (struct wn_attention, half) */
  WN_CALL_INT32,
  WN_CALL_UINT8,
  WN_CALL_DOUBLE,
  WN_CALL_OTHER /* a pointer to no array: a function, a user's */
};

struct wn_call_field {
  const char *name;
  size_t at, size; /* in struct wn_attention */
  enum wn_call_scope scope;
  enum wn_call_element element;
  /* An array's axes, outermost first, a letter each (derive.c, call_extent); "": one that is the same in every view.
   * With `strides` (the offset of its struct wn_stride) the first three have the steps b, t and h; else, and along a
   * fourth, the array is contiguous. */
  const char *axes;
  size_t strides;
};

int wn_call_field_count(void);
const struct wn_call_field *wn_call_field_at(int i);
/* Elements from an array's first to its last, those between rows of it that are apart included; 0: no array. */
int64_t wn_call_field_span(const struct wn_attention *a, const struct wn_call_field *field);
size_t wn_call_element_bytes(const struct wn_attention *a, enum wn_call_element element, wn_dtype dtype);

struct wn_attention wn_attention_forward_only(const struct wn_attention *op);

/* One sequence. */
struct wn_attention wn_attention_of_sequence(const struct wn_attention *op, wn_dtype dtype, int64_t b);

/* Rows r..r+n-1 on the keys up to their own. With documents or control tokens of several sequences this cannot be said;
 * what comes back then is a call of 0 sequences, which every operation refuses. */
struct wn_attention wn_attention_of_rows(const struct wn_attention *op, wn_dtype dtype, int64_t r, int64_t n);

/* The call with n more rows in front of its own, on the same keys. What there is for each row (q, y, sq of a bilinear
 * selection, z of a dynamic span) is laid out in `arrays`, contiguous: zero for the rows in front, a copy for the rest.
 * Arrays without memory are counted, and the view is good for asking sizes alone: its arrays are the call's. */
struct wn_attention wn_attention_with_rows_before(const struct wn_attention *op, wn_dtype dtype, int64_t n,
                                                  struct wn_arrays *arrays);

/* Rows t..t+n-1 on the keys t..t+n-1, of a call on whole sequences; the same exception. */
struct wn_attention wn_attention_of_tokens(const struct wn_attention *op, wn_dtype dtype, int64_t t, int64_t n);

/* Key-value heads g..g+n-1 and the queries that share them, for caches and policies that treat heads apart. Of what is
 * there for each key-value head (cache positions of P groups, f_in and f_out of G selections) n is 1 or all; one
 * selection for all heads wants all heads. */
struct wn_attention wn_attention_of_heads(const struct wn_attention *op, wn_dtype dtype, int64_t g, int64_t n);

/* The selecting head of each selection alone, with what decides F. y [B,Tq,G,D] is the caller's to give. */
struct wn_attention wn_attention_selection_only(const struct wn_attention *op, wn_dtype dtype);

/* What decides the weights; y is as it is before the terms of the output. */
struct wn_attention wn_attention_weights_only(const struct wn_attention *op);

#endif
