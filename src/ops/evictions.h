/* Computes evictions before the attention: which keys the rows of one attention call no longer see under a budget of K
 * tokens (docs/pruning.md). It goes row by row, as decoding would. When a row comes and K keys are held, the rule
 * (ops/evict.h) evicts one of them. Then the row's own key enters. What the row selects is added to F, and its
 * attention sums over the held keys are added to the notes; later choices read both. Logits do not depend on evictions.
 * Scores are summed in double, in the order of the rows.
 *
 * Whole sequences start empty, each document separately. A piece of a prompt starts with the keys before its rows;
 * these are held and in order of position. */
#ifndef WN_OPS_EVICTIONS_H
#define WN_OPS_EVICTIONS_H

#include "ops/evict.h"
#include "ops/ops.h"
#include "ops/terms.h"

#define WN_EVICTED_NEVER INT32_MAX

enum {
  /* Terms of a call whose attention sums the operation can compute. A threshold is missing, since attention itself
   * makes that choice: then `own` must compute the sums. */
  WN_EVICTIONS_SUMS_SERVED = WN_TERM_SELECTION | WN_TERM_WINDOW | WN_TERM_STRIDED | WN_TERM_SQUARE_ROOT | WN_TERM_SPAN |
                             WN_TERM_RELATIVE | WN_TERM_SINKS | WN_TERM_EXCLUSIVE | WN_TERM_GATE | WN_TERM_DROPOUT |
                             WN_TERM_DOCUMENTS | WN_TERM_EVICTION | WN_TERM_EVICTION_BY_HEAD | WN_TERM_POSITIONS |
                             WN_TERM_POSITIONS_BY_HEAD | WN_TERM_SUMS | WN_TERM_LOOK | WN_TERM_OPEN | WN_TERM_HALF |
                             WN_TERM_BLOCKS | WN_TERM_CONSTANT_KEYS | WN_TERM_SOME_HEADS | WN_TERM_SCORE_MAP |
                             WN_TERM_KEYED,
  /* Terms of a call whose evictions and selections the operation can compute. */
  WN_EVICTIONS_SERVED = WN_EVICTIONS_SUMS_SERVED | WN_TERM_THRESHOLD
};

/* How a row's attention sums change the notes: a function of the policy does it; they are added to the first note; they
 * overwrite those of n rows ago, n being the number of notes. */
enum wn_notes_change { WN_NOTES_OWN, WN_NOTES_ADD, WN_NOTES_RING };

/* Budget and protected tokens of a group of key-value heads. */
struct wn_evictions_group {
  int64_t K, sinks, recent;
};
enum { WN_EVICTIONS_GROUPS = 64 };

struct wn_evictions_own;
struct wn_evictions {
  const struct wn_attention *a; /* the call, with the host's structs: reads q, k, the terms, and of slots `groups` (P),
                                 * `at` and `stride`; ignores its outputs. Whole sequences: Tq == Tk */
  int64_t group0, groups;       /* the groups to process, of P */
  int64_t first_group;          /* the number of group 0 in its layer, for random numbers */
  struct wn_evict_rule rule;    /* values are F, or the notes if `sums`; sinks and recent come from `group` */
  struct wn_evictions_group group[WN_EVICTIONS_GROUPS];
  bool selections, sums;       /* what the rule reads: F; notes of attention sums */
  bool constant;               /* a token's score never changes */
  enum wn_notes_change change; /* of notes */
  int64_t notes;               /* numbers per token */
  int64_t rows;                /* how many rows back sums can matter; INT64_MAX: all */
  bool piece;                  /* a piece of a prompt; else whole sequences */
  void *note;                  /* [B,P,notes,stride] for a piece: notes of the keys that stay, updated */
  int32_t *evicted_at;         /* [B,P,stride] position of the first row that no longer sees the key, or
                                * WN_EVICTED_NEVER. Other groups: unchanged */
  int32_t *left;               /* [B,P,min(K,Tk)] for a piece, if all groups have one K: the keys held after its last
                                * row, in order; or NULL */
  const struct wn_evictions_own *own; /* NULL: none. Only with a backend on the host */
};

/* ---- functions of a policy, on the host ---- */

/* A row whose sums a policy computes: row `row` of sequence b and group `group` of the call. */
struct wn_evictions_row {
  int64_t b, group, row;
  const int32_t *evicted_at; /* of the group, from the rows before */
  void *y, *f, *weights;     /* [H/P,D]; [G,Tk] F of the rows so far, updated; [Tk] the sums */
};
struct wn_evictions_own {
  /* Updates the notes after a row, for WN_NOTES_OWN. */
  void (*follow)(const struct wn_policy_notes *notes);
  /* Computes the sums of a row, in `attend_scratch` bytes of exec's scratch; NULL: the operation does. */
  wn_status (*attend)(const struct wn_exec *exec, const struct wn_evictions *op, const struct wn_evictions_row *row);
  size_t (*attend_scratch)(const struct wn_exec *exec, const struct wn_evictions *op);
};

static inline bool wn_evictions_attends(const struct wn_evictions *op) {
  return op->sums && op->own && op->own->attend;
}

#endif
