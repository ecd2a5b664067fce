/* Views of an attention call: calls on a part of its arrays (one sequence, some rows, some heads), without the fields
 * that the view does not need. Views are made by loops over one table (derive.c) with a row for every field of struct
 * wn_attention: the field's scope, and for an array its axes. A field without a row fails
 * tests/attention/test_derive.c.
 *
 * Every view is a forward call: what backward needs, results for inspection (F, M, counts), looks, dropout and
 * gradients are dropped. A caller that wants some of these sets them again. */
#ifndef WN_ATTENTION_DERIVE_H
#define WN_ATTENTION_DERIVE_H

#include "base/arrays.h"
#include "ops/attention.h"
#include "ops/ops.h"

/* What a field is needed for. A view up to one scope drops the fields of later ones. */
enum wn_call_scope {
  WN_CALL_SHAPE,     /* sizes, q, k, v, y and what every call has */
  WN_CALL_SELECTION, /* decides or holds F */
  WN_CALL_WEIGHTS,   /* decides or reads the weights, but not F */
  WN_CALL_OUTPUT,    /* decides y alone */
  WN_CALL_TRAINING   /* what backward needs, results for inspection, looks, dropout, gradients */
};

enum wn_call_element {
  WN_CALL_NUMBER, /* no array */
  WN_CALL_REAL,   /* the call's dtype */
  WN_CALL_ROW,    /* the call's row_type */
  WN_CALL_KEY,    /* the same, or what k_type says (struct wn_attention) */
  WN_CALL_VALUE,  /* v_type */
  WN_CALL_INT32,
  WN_CALL_UINT8,
  WN_CALL_DOUBLE,
  WN_CALL_OTHER /* a pointer that is no array: a function, or its user pointer */
};

struct wn_call_field {
  const char *name;
  size_t at, size; /* in struct wn_attention */
  enum wn_call_scope scope;
  enum wn_call_element element;
  /* An array's axes, outermost first, one letter each (call_extent in derive.c); "": the array is the same in every
   * view. With `strides` (the offset of its struct wn_stride) the first three axes have the strides b, t and h.
   * Otherwise, and along a fourth axis, the array is contiguous. */
  const char *axes;
  size_t strides;
};

int wn_call_field_count(void);
const struct wn_call_field *wn_call_field_at(int i);
/* Elements from an array's first to its last, gaps between its rows included; 0: no array. */
int64_t wn_call_field_span(const struct wn_attention *a, const struct wn_call_field *field);
/* Bytes of n elements, of which stored keys and values have whole blocks. */
size_t wn_call_bytes(const struct wn_attention *a, enum wn_call_element element, wn_dtype dtype, int64_t n);

struct wn_attention wn_attention_forward_only(const struct wn_attention *op);

/* One sequence. */
struct wn_attention wn_attention_of_sequence(const struct wn_attention *op, wn_dtype dtype, int64_t b);

/* Rows r..r+n-1, with the keys up to the last of them. With documents or control tokens and several sequences such a
 * view cannot be expressed: the result is then a call of 0 sequences, which every operation refuses. */
struct wn_attention wn_attention_of_rows(const struct wn_attention *op, wn_dtype dtype, int64_t r, int64_t n);

/* The call with n more rows before its own, on the same keys. Arrays with one entry per row (q, y, sq of a bilinear
 * selection, z of a dynamic span) get contiguous copies in `arrays`, with zeros for the added rows. If `arrays` has no
 * memory yet, the copies are only counted, and the view serves to ask for sizes: its arrays are those of the call. */
struct wn_attention wn_attention_with_rows_before(const struct wn_attention *op, wn_dtype dtype, int64_t n,
                                                  struct wn_arrays *arrays);

/* Rows t..t+n-1 on the keys t..t+n-1, of a call on whole sequences; 0 sequences where wn_attention_of_rows has 0. */
struct wn_attention wn_attention_of_tokens(const struct wn_attention *op, wn_dtype dtype, int64_t t, int64_t n);

/* Key-value heads g..g+n-1 and the query heads that share them, for caches and policies that treat heads separately. n
 * is 1 or all where arrays differ by key-value head (cache positions of P groups, f_in and f_out of G selections). With
 * one selection for all heads the view must have all heads. */
struct wn_attention wn_attention_of_heads(const struct wn_attention *op, wn_dtype dtype, int64_t g, int64_t n);

/* Only the selecting head of each selection, with what decides F. The caller sets y [B,Tq,G,D]. */
struct wn_attention wn_attention_selection_only(const struct wn_attention *op, wn_dtype dtype);

/* Only what decides the weights: y is what it is before the terms that change outputs. */
struct wn_attention wn_attention_weights_only(const struct wn_attention *op);

#endif
