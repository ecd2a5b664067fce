/* winnow: budgets of the key-value cache, and the eviction policies that keep to them.
 *
 * A layer with a budget of K tokens holds the keys and values of at most K. When token i (counted from 0) comes and K
 * are held, its layer first evicts one of them; then i enters and attends to the tokens held, itself included. An
 * evicted token is not seen by any later row of that layer. Budgets may differ from layer to layer and from key-value
 * head to key-value head. A budget of the whole context never evicts.
 *
 * That is `always`. Under other protocols (wn_when) a layer is compressed as a whole: once, where the caller says that
 * the context ends (wn_session_compress, model.h), or each time so many tokens more are held.
 *
 * A policy says which token is evicted. It gives each token a score; the token with the highest score is evicted, of
 * equal ones the oldest. Some policies protect the first tokens (sinks) or the most recent. docs/pruning.md has the
 * policies with their papers.
 *
 *   wn_budgets budgets;
 *   wn_budgets_init(&budgets, &wn_model_config_get(model)->attention);          a policy that the model accepts
 *   wn_policy_find(ctx, "h2o", &budgets.policy);
 *   wn_budgets_parse(ctx, wn_model_config_get(model), "64", &budgets);          64 tokens in every layer (model.h)
 *   wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .budgets = &budgets), &session);
 *   wn_budgets_clear(&budgets); */
#ifndef WINNOW_KV_H
#define WINNOW_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/attention.h"
#include "winnow/context.h"

WN_STABLE_BEGIN

/* An eviction policy: its number, from 0 to wn_policy_count() - 1. Numbers may change from version to version; names do
 * not, and files hold names. */
typedef int wn_policy;
/* What a policy is. */
typedef struct wn_policy_info {
  const char *name, *summary; /* "h2o", and in one line which token it evicts */
  bool per_kv_head;           /* each key-value head may evict on its own */
  bool cache_positions;       /* has the option cache_positions (wn_budgets) */
  bool selective;             /* only for models with selective attention */
} wn_policy_info;
#define WN_POLICY_MAX 32 /* no build has more policies: the size of tables by policy */
/* How many policies there are. */
int wn_policy_count(void);
const wn_policy_info *wn_policy_at(wn_policy policy); /* NULL: there is none of that number */
/* The policy with that name. WN_ERR_CONFIG: there is none, the error lists the names, and *out stays as it is. */
wn_status wn_policy_find(wn_context *ctx, const char *name, wn_policy *out);
const char *wn_policy_name(wn_policy policy); /* "?": there is none of that number */
/* The key of option i of a policy in budgets.json, NULL after the last; *help (may be NULL): what it does. */
const char *wn_policy_option(wn_policy policy, int i, const char **help);
/* Does a model with this attention have what the policy reads? */
bool wn_policy_suits(wn_policy policy, const wn_attention_config *config);

/* How the keys and values in a cache are stored. */
typedef enum wn_cache_format {
  WN_CACHE_FLOAT, /* "float": as the model computes them */
  WN_CACHE_HALF,  /* "half": as half floats: half the bytes, 11 significant bits; numbers beyond 65504 become infinite.
                     Needs an F32 model and heads of at most 256; not with strides, the square-root mask, thresholds,
                     exclusive attention, cache positions: WN_ERR_UNSUPPORTED names the obstacle */
  WN_CACHE_AUTO,  /* "auto": half where the model's matrices came from a file in 16 bits or fewer and no obstacle is in
                     the way, else float */
  WN_CACHE_Q8_0,  /* "q8_0": in blocks of 32 signed bytes with one half float, their scale, as GGUF's Q8_0: 34/64 of
                     half's bytes. Needs what half needs, and heads of a multiple of 32; not on the cuda backend */
  WN_CACHE_Q4_0   /* "q4_0": values in GGUF's Q4_0, blocks of 32 numbers in 4 bits with their scale; keys as in q8_0:
                     26/64 of half's bytes */
} wn_cache_format;
#define WN_CACHE_COUNT 5
const char *wn_cache_format_name(wn_cache_format format);

/* How a policy pools over neighbouring tokens. */
typedef enum wn_pool { WN_POOL_MEAN, WN_POOL_MAX } wn_pool;

/* When a layer is reduced to its budget. */
typedef enum wn_when {
  WN_WHEN_ALWAYS, /* "always": one token goes for each that arrives */
  WN_WHEN_PROMPT, /* "prompt": once, at the context's end; then the cache grows */
  WN_WHEN_HOLD,   /* "hold": once, at the context's end; then as always */
  WN_WHEN_EVERY   /* "every": to K tokens whenever K + `every` are held, in prompts too */
} wn_when;
#define WN_WHEN_COUNT 4
const char *wn_when_name(wn_when when); /* "?": there is none of that number */

/* How a compression divides what a layer, or all layers, may hold. */
typedef enum wn_allot {
  WN_ALLOT_UNIFORM, /* "uniform": each group of key-value heads keeps K tokens */
  WN_ALLOT_PYRAMID, /* "pyramid": lower layers keep more, higher ones less (Cai et al. 2024, PyramidKV) */
  WN_ALLOT_ADA,  /* "ada": a layer's key-value heads share its tokens, the best of all heads stay; each keeps at least
                    a fifth of K (Feng et al. 2024, Ada-KV) */
  WN_ALLOT_TAU,  /* "tau": no budget: each head keeps what scores at most `tau`, and the last `window` tokens */
  WN_ALLOT_MODEL /* "model": the best tokens of all heads of all layers stay, as many as their budgets together; with
                    the method kvzip alone */
} wn_allot;
#define WN_ALLOT_COUNT 5

/* A policy of the caller's own: a function that scores the tokens held. It runs on the host, on copies of what it asks
 * for; that costs one pass over these arrays a row and layer, and prompts are read row by row. */
#define WN_POLICY_OWN 31 /* its number; not among wn_policy_count(), and files cannot name it */
/* What it can ask for, besides positions. */
enum {
  WN_OWN_SELECTIONS = 1, /* F, in a model with selective attention */
  WN_OWN_SUMS = 2,       /* attention sums */
  WN_OWN_KEYS = 4,       /* keys as the cache holds them: rotated in a rotary model, by their positions */
  WN_OWN_VALUES = 8
};
/* The tokens that a layer holds when a row arrives, in order of position: those of all groups of heads while text is
 * read token by token, of one group and sequence where a whole sequence is computed. What was not asked for is NULL. */
typedef struct wn_policy_view {
  int64_t layer, group;      /* group: the number of the first one */
  int64_t sequences, groups; /* groups: of key-value heads that evict on their own */
  int64_t heads, head_size;  /* heads: key-value heads of a group */
  int64_t count;             /* tokens held, the same in each group */
  int64_t position, budget; /* of the token that arrives; the tokens that may be held with it, or after a compression */
  const int32_t *positions; /* [sequences,groups,count] */
  const float *keys;        /* [sequences,groups,heads,count,head_size] */
  const float *values;      /* likewise */
  const float *selections;  /* [sequences,groups,count] */
  const float *sums;        /* [sequences,groups,count], or [sequences,groups,rows,count], the last row at the end */
  double *scores;           /* [sequences,groups,count] to be filled: the token with the highest goes, of equal ones
                               the oldest; with -infinity only if nothing else is left */
} wn_policy_view;
typedef struct wn_own_policy {
  size_t size;           /* sizeof(wn_own_policy) */
  unsigned needs;        /* of WN_OWN_... */
  int64_t sinks, recent; /* how many of the first and of the most recent tokens stay, at most budget - 1 */
  int64_t rows; /* sums: 0: of all rows together; else of each of the last rows, at most 256; before there are as many,
                   zeros */
  /* False: failed, and so does the call. Called by one thread at a time, but not always by the same; must not call
   * winnow. */
  bool (*score)(void *user, const wn_policy_view *view);
  void *user;
} wn_own_policy;

struct wn_pins;
/* The budgets of every layer. Owns `tokens` and `head_tokens`; a wn_budgets of zeros has none. */
typedef struct wn_budgets {
  wn_policy policy;
  int64_t layers;
  int64_t *tokens;       /* [layers], each >= 1; a budget of the context or more never evicts */
  int64_t heads;         /* 0: all key-value heads of a layer have its budget; else the model's key-value heads */
  int64_t *head_tokens;  /* [layers,heads], each >= 1: a budget for each key-value head. For policies that evict in each
                            head by itself (with per_kv_head, or "selective" with a selection per head). tokens[l] is
                            then the largest of the layer */
  bool per_kv_head;      /* each key-value head evicts on its own, if the policy can (wn_policy_info) */
  wn_cache_format cache; /* format of the cache, for budgets given in bytes (wn_budgets_parse); not AUTO, not saved;
                            default float */
  /* Options of single policies; wn_budgets_init gives the defaults. */
  int64_t sinks; /* streaming: how many first tokens are never evicted, at most K-1 of a budget of K; default 4 */
  bool cache_positions; /* streaming: a token's position is its cache position, as in the paper; default false: its
                           position in the text. Needs rotary or relative positions */
  double recent;        /* h2o: the share of the budget that is reserved for the most recent tokens; default 0.5 */
  uint64_t seed;        /* random: the seed */
  struct {
    int64_t rows; /* how many of the last rows vote. As many of the most recent tokens are protected, at most half of
                     the budget. The cache keeps one number per voting row for each token. Default 32 */
    int64_t neighbours; /* votes are pooled over this many positions on each side; 0: not pooled; default 2 */
    wn_pool pool;       /* default the mean */
  } snapkv;
  const wn_own_policy *own; /* with WN_POLICY_OWN: outlives all that uses the budgets; default NULL */
  /* Protocols (docs/pruning.md). */
  wn_when when;
  wn_allot allot; /* with prompt and hold, tau with every too. For one sequence at a time, except uniform and pyramid */
  int64_t every;  /* with every: how many tokens more than K may be held, with tau: after how many tokens what scores
                     above it goes; default 0, at least 1 with every */
  double share;   /* with prompt and hold: K is this share of the tokens read, rounded down, at least 1, and `tokens`
                     are not read; default 0: not given */
  double tau;     /* with tau: the highest score that stays (the token with the highest is the first to go: F, the norm
                     of a key, minus the attention, ...); default 0 */
  int64_t window; /* with tau: so many most recent tokens stay whatever they score; default 32 */
  int method; /* what scores a whole cache in the policy's place, for each key-value head (wn_method_name); the policy
                 still says which tokens go one by one, and with "observed" keeps the sums: h2o. Default 0: none */
  bool critical; /* scores are weighted by the norms of the projected values (Feng et al. 2025, CriticalKV) */
  const struct wn_pins *pins; /* a session's own (wn_session_pin); NULL in a caller's budgets */
  uint64_t reserved[16];      /* 0: room for what later versions add */
} wn_budgets;
/* The methods that score a whole cache, from 1 to wn_method_count() - 1; 0 is "none". Numbers may change, names do not.
 */
int wn_method_count(void);
const char *wn_method_name(int method,
                           const char **summary); /* NULL: there is none of that number. summary may be NULL */
/* Sets policy, method, allot, critical and per_kv_head to a combination that papers know by a name: "expected",
 * "pyramidkv", "ada-snapkv", ... False: it is no such name, and *out stays as it is. wn_budgets_named_at lists them. */
bool wn_budgets_named(const char *name, wn_budgets *out);
const char *wn_budgets_named_at(int i); /* NULL after the last */
/* Every option's default, no tokens, and a policy that suits a model with this attention: "selective" where it is
 * selective, else, and for NULL, "streaming", which every model accepts. */
void wn_budgets_init(wn_budgets *budgets, const wn_attention_config *attention);
void wn_budgets_clear(wn_budgets *budgets);
/* Sets keys of budgets.json from text: "recent=0.25,per_kv_head=true". */
wn_status wn_budgets_set(wn_context *ctx, const char *assignments, wn_budgets *out);
/* Reads a budgets.json, or a folder with one. What the file lacks gets its default, whatever *out held. */
wn_status wn_budgets_load(wn_context *ctx, const char *path, wn_budgets *out);
wn_status wn_budgets_save(wn_context *ctx, const wn_budgets *budgets, const char *path);
/* Tokens that all layers hold together. A layer whose key-value heads have budgets of their own counts with their mean;
 * the sum is rounded to the nearest. */
int64_t wn_budgets_total(const wn_budgets *budgets);
/* K of one key-value head; layer and head within the budgets. */
int64_t wn_budgets_of(const wn_budgets *budgets, int64_t layer, int64_t kv_head);

WN_API_END
WN_EXPERIMENTAL_BEGIN

/* P, the number of groups of key-value heads that evict on their own in one attention call: 1, or Hkv. */
int64_t wn_attention_eviction_groups(const wn_attention_config *config, const wn_attention_arrays *arrays,
                                     const wn_budgets *budgets);
/* The evictions of one attention call on whole sequences under the budgets of layer 0: the caller's evicted_at [B,P,T]
 * receives for each key the position of the first row that no longer sees it, INT32_MAX where there is none. Passed as
 * arrays->evicted_at they make the call attend as decoding under the budget would. */
wn_status wn_attention_evictions(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays,
                                 const wn_budgets *budgets, int32_t *evicted_at);

WN_API_END
#endif
