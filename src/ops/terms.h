/* The terms of the attention operation: each has a bit, a name and traits. Backends, their code paths, views and
 * policies list the terms they serve in a mask. They name terms, or take all that have a trait, but never "all except":
 * so nothing serves a new term until somebody says so. A call with another term is refused with an error that names
 * both. Score maps (ops/score.h) share the bit WN_TERM_SCORE_MAP and have their own traits. */
#ifndef WN_OPS_TERMS_H
#define WN_OPS_TERMS_H

#include "ops/attention.h"

/* What a term can be combined with. */
enum {
  WN_TRAIT_OPEN = 1,      /* rows without causality */
  WN_TRAIT_HALF = 2,      /* keys and values in half floats, or in blocks */
  WN_TRAIT_BACKWARD = 4,  /* it has a gradient, or is constant in backward */
  WN_TRAIT_LOGIT = 8,     /* it changes a logit, whatever the key's distance and the other keys are */
  WN_TRAIT_DEAD_KEYS = 16 /* the bound for skipping dead keys holds with it */
};

/* The list: bit, name, condition, traits. It includes what shapes a call and not only its scores. */
#define WN_TERMS(X)                                                                                                    \
  X(SELECTION, "selection", a->sel.on, WN_TRAIT_OPEN | WN_TRAIT_HALF | WN_TRAIT_BACKWARD | WN_TRAIT_DEAD_KEYS)         \
  X(WINDOW, "window", a->window > 0, WN_TRAIT_HALF | WN_TRAIT_BACKWARD)                                                \
  X(STRIDED, "strided", a->strided > 0, WN_TRAIT_BACKWARD)                                                             \
  X(SQUARE_ROOT, "square-root mask", a->root.on, WN_TRAIT_BACKWARD)                                                    \
  X(SPAN, "span", a->span.on, WN_TRAIT_HALF | WN_TRAIT_BACKWARD)                                                       \
  X(RELATIVE, "relative positions", a->relative.P > 0, WN_TRAIT_HALF | WN_TRAIT_BACKWARD)                              \
  X(SINKS, "sinks", a->sinks.n > 0, WN_TRAIT_HALF | WN_TRAIT_BACKWARD | WN_TRAIT_DEAD_KEYS)                            \
  X(THRESHOLD, "threshold", a->threshold.on, WN_TRAIT_BACKWARD)                                                        \
  X(EXCLUSIVE, "exclusive", a->exclusive.on, WN_TRAIT_BACKWARD | WN_TRAIT_DEAD_KEYS)                                   \
  X(GATE, "gate", a->gate.on, WN_TRAIT_HALF | WN_TRAIT_BACKWARD | WN_TRAIT_DEAD_KEYS)                                  \
  X(KEYED, "numbers of the keys", wn_score_keyed(a) > 0, WN_TRAIT_HALF | WN_TRAIT_BACKWARD)                            \
  X(DROPOUT, "dropout", a->dropout.p > 0, WN_TRAIT_OPEN | WN_TRAIT_HALF | WN_TRAIT_BACKWARD | WN_TRAIT_LOGIT)          \
  X(DOCUMENTS, "documents", a->doc_start != NULL, WN_TRAIT_HALF | WN_TRAIT_BACKWARD | WN_TRAIT_DEAD_KEYS)              \
  X(EVICTION, "eviction", a->slots.evicted_at != NULL && wn_slot_groups(a) == 1,                                       \
    WN_TRAIT_HALF | WN_TRAIT_BACKWARD | WN_TRAIT_DEAD_KEYS)                                                            \
  X(EVICTION_BY_HEAD, "eviction by key-value head", a->slots.evicted_at != NULL && wn_slot_groups(a) > 1,              \
    WN_TRAIT_HALF | WN_TRAIT_BACKWARD)                                                                                 \
  X(POSITIONS, "cache positions", a->slots.at != NULL && wn_slot_groups(a) == 1, WN_TRAIT_HALF)                        \
  X(POSITIONS_BY_HEAD, "cache positions by key-value head", a->slots.at != NULL && wn_slot_groups(a) > 1,              \
    WN_TRAIT_HALF)                                                                                                     \
  X(SUMS, "attention sums", a->slots.sums != NULL, WN_TRAIT_HALF)                                                      \
  X(LOOK, "look at the weights", wn_attention_looks(a), WN_TRAIT_HALF)                                                 \
  X(OPEN, "open rows", a->open, WN_TRAIT_OPEN | WN_TRAIT_BACKWARD | WN_TRAIT_LOGIT)                                    \
  X(HALF, "keys in half floats", a->k_type == WN_GGUF_F16, WN_TRAIT_HALF | WN_TRAIT_DEAD_KEYS)                         \
  X(BLOCKS, "keys in blocks of 8 or 4 bits", wn_stored_blocks(a->k_type), WN_TRAIT_HALF | WN_TRAIT_DEAD_KEYS)          \
  X(CONSTANT_KEYS, "keys held constant", a->dk_from > 0, WN_TRAIT_HALF | WN_TRAIT_BACKWARD | WN_TRAIT_DEAD_KEYS)       \
  X(SOME_HEADS, "some of a model's heads", a->head0 > 0 || a->head_step > 1,                                           \
    WN_TRAIT_OPEN | WN_TRAIT_HALF | WN_TRAIT_LOGIT | WN_TRAIT_DEAD_KEYS)                                               \
  X(BF16, "rows in bf16", a->row_type == WN_BF16, WN_TRAIT_OPEN | WN_TRAIT_BACKWARD | WN_TRAIT_LOGIT)

#define WN_TERM_INDEX(bit, name, on, traits) WN_TERM_INDEX_##bit,
enum { WN_TERMS(WN_TERM_INDEX) WN_TERM_COUNT };
#define WN_TERM_BIT(bit, name, on, traits) WN_TERM_##bit = 1 << WN_TERM_INDEX_##bit,
enum {
  WN_TERMS(WN_TERM_BIT) WN_TERM_SCORE_MAP = 1 << WN_TERM_COUNT,
  WN_TERM_UNKNOWN = 1 << (WN_TERM_COUNT + 1), /* a term without functions; in no mask */
  WN_TERMS_OWN = WN_TERM_SCORE_MAP - 1
};

/* For each trait, the mask of the struct's own terms that have it. */
#define WN_TERM_IF_OPEN(bit, name, on, traits) | ((traits)&WN_TRAIT_OPEN ? WN_TERM_##bit : 0)
#define WN_TERM_IF_HALF(bit, name, on, traits) | ((traits)&WN_TRAIT_HALF ? WN_TERM_##bit : 0)
#define WN_TERM_IF_BACKWARD(bit, name, on, traits) | ((traits)&WN_TRAIT_BACKWARD ? WN_TERM_##bit : 0)
#define WN_TERM_IF_LOGIT(bit, name, on, traits) | ((traits)&WN_TRAIT_LOGIT ? WN_TERM_##bit : 0)
#define WN_TERM_IF_DEAD_KEYS(bit, name, on, traits) | ((traits)&WN_TRAIT_DEAD_KEYS ? WN_TERM_##bit : 0)
enum {
  WN_TERMS_OPEN = 0 WN_TERMS(WN_TERM_IF_OPEN),
  WN_TERMS_HALF = 0 WN_TERMS(WN_TERM_IF_HALF),
  WN_TERMS_BACKWARD = 0 WN_TERMS(WN_TERM_IF_BACKWARD),
  WN_TERMS_LOGIT = 0 WN_TERMS(WN_TERM_IF_LOGIT),
  WN_TERMS_DEAD_KEYS = 0 WN_TERMS(WN_TERM_IF_DEAD_KEYS)
};

/* Has the kind functions? */
static inline bool wn_score_known(const struct wn_score_kind *kind) {
  return kind->values || kind->keyed_double || kind->forward_double;
}
/* The terms of a call. */
static inline uint32_t wn_call_terms(const struct wn_attention *a) {
#define WN_TERM_ON(bit, name, on, traits) | ((on) ? (uint32_t)WN_TERM_##bit : 0)
  uint32_t terms = 0 WN_TERMS(WN_TERM_ON);
#undef WN_TERM_ON
  for (int64_t i = 0; i < a->maps; i++)
    terms |= wn_score_known(a->map[i].kind) ? (uint32_t)WN_TERM_SCORE_MAP : (uint32_t)WN_TERM_UNKNOWN;
  return terms;
}

/* The name of the first term of a call that is not in `served`; NULL: all are. */
const char *wn_call_lacks(const struct wn_attention *a, uint32_t served);
/* The same for terms that lack one of `traits`; score maps have their own traits. */
const char *wn_call_lacks_traits(const struct wn_attention *a, uint32_t traits);
/* The name of the first of the struct's own terms in a mask. */
const char *wn_terms_name(uint32_t terms);
/* The name of the first term in a mask that lacks one of the traits, or NULL. */
const char *wn_terms_lack_traits(uint32_t terms, uint32_t traits);

#endif
