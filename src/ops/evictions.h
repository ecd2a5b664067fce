/* Evictions that are found before the attention: which keys the rows of one attention call no longer see under a budget
 * of K tokens (docs/pruning.md). Row by row, as decoding would: when a row comes and K keys are held, one of them is
 * evicted by the rule (ops/evict.h); the row's own enters; what the row selects is added to F, and its attention sums
 * over the keys held to the notes, which the next choices read. Logits do not depend on evictions. Scores add up in
 * double in the order of the rows.
 *
 * Whole sequences begin with nothing, each document for itself. A piece of a prompt goes on from the keys before its
 * rows, which are held, in order of position. */
#ifndef WN_OPS_EVICTIONS_H
#define WN_OPS_EVICTIONS_H

#include "ops/evict.h"
#include "ops/ops.h"
#include "ops/terms.h"

#define WN_EVICTED_NEVER INT32_MAX

enum {
  /* The terms of a call whose attention sums the operation computes. With a threshold, whose choice is attention's own,
   * `own` has to. */
  WN_EVICTIONS_SUMS_SERVED =
      WN_TERM_SELECTION | WN_TERM_WINDOW | WN_TERM_STRIDED | WN_TERM_SQUARE_ROOT | WN_TERM_SPAN | WN_TERM_RELATIVE |
      WN_TERM_BIAS | WN_TERM_SINKS | WN_TERM_EXCLUSIVE | WN_TERM_GATE | WN_TERM_DROPOUT | WN_TERM_DOCUMENTS |
      WN_TERM_EVICTION | WN_TERM_EVICTION_BY_HEAD | WN_TERM_POSITIONS | WN_TERM_POSITIONS_BY_HEAD | WN_TERM_SUMS |
      WN_TERM_LOOK | WN_TERM_OPEN | WN_TERM_HALF | WN_TERM_CONSTANT_KEYS | WN_TERM_SOME_HEADS | WN_TERM_SCORE_MAP,
  /* The terms of a call whose rows are walked, and whose selections are computed. */
  WN_EVICTIONS_SERVED = WN_EVICTIONS_SUMS_SERVED | WN_TERM_THRESHOLD
};

/* How a row's attention sums change the notes: by a function of the policy's own; they are added to the first; they
 * take the place of those of n rows before, n being the number of notes. */
enum wn_notes_change { WN_NOTES_OWN, WN_NOTES_ADD, WN_NOTES_RING };

/* What a group of key-value heads may hold. */
struct wn_evictions_group {
  int64_t K, sinks, recent;
};
enum { WN_EVICTIONS_GROUPS = 64 };

struct wn_evictions_own;
struct wn_evictions {
  const struct wn_attention *a; /* the call, of the host's: q, k and the terms, and of slots `groups` P, `at` and
                                   `stride`; its outputs are not looked at. Whole sequences: Tq == Tk */
  int64_t group0, groups;       /* of the P groups, those that are meant */
  int64_t first_group;          /* the number of group 0 in its layer, for random numbers */
  struct wn_evict_rule rule;    /* values are F, or notes where there are sums; sinks and recent are the groups' */
  struct wn_evictions_group group[WN_EVICTIONS_GROUPS];
  bool selections, sums;       /* what the rule reads: F; notes of attention sums */
  enum wn_notes_change change; /* of notes */
  int64_t notes;               /* numbers of a token */
  int64_t rows;                /* how many rows back sums can matter; INT64_MAX: all */
  bool piece;                  /* else whole sequences */
  void *note;                  /* [B,P,notes,stride] of a piece: carried on for keys that are left */
  int32_t *evicted_at;         /* [B,P,stride] the position of the first row that no longer sees the key,
                                  WN_EVICTED_NEVER where there is none. Of other groups: untouched */
  int32_t *left;               /* [B,P,min(K,Tk)] of a piece, where all groups have one K: the keys held after its last
                                  row, in order; or NULL */
  const struct wn_evictions_own *own; /* NULL: none. Only a backend on the host has them */
};

/* ---- functions of a policy's own, on the host ---- */

/* What a group holds when a row comes, in order of position: F and notes are doubles. */
struct wn_evictions_held {
  int64_t group; /* of the layer's */
  int64_t K, count, row;
  const int32_t *at;        /* [count] positions, below 0: evicted */
  const double *scores, *F; /* [count] or NULL */
  double *notes;            /* [notes,stride] */
  int64_t stride;
};
/* A row whose sums are computed elsewhere: row `row` of sequence b and group `group` of the call. */
struct wn_evictions_row {
  int64_t b, group, row;
  const int32_t *evicted_at; /* of the group, by the rows before */
  void *y, *f, *weights;     /* [H/P,D], [G,Tk] F of the rows so far, which is carried on, [Tk] the sums */
};
struct wn_evictions_own {
  const void *user;
  bool by_position; /* a token's score never changes */
  /* Scores of tokens first..first+n-1; NULL: the rule's. */
  void (*score)(const struct wn_evictions *op, const struct wn_evictions_held *held, int64_t first, int64_t n,
                double *out);
  /* The notes after a row, whose sums are [count]: WN_NOTES_OWN. */
  void (*follow)(const struct wn_evictions *op, const struct wn_evictions_held *held, const double *sums);
  /* The sums of a row, in exec's scratch of `attend_scratch` bytes; NULL: the operation's. */
  wn_status (*attend)(const struct wn_exec *exec, const struct wn_evictions *op, const struct wn_evictions_row *row);
  size_t (*attend_scratch)(const struct wn_exec *exec, const struct wn_evictions *op);
};

static inline bool wn_evictions_attends(const struct wn_evictions *op) {
  return op->sums && op->own && op->own->attend;
}

#endif
