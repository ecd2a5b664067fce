/* winnow: budgets of the key-value cache and the policies that keep to them.
 *
 * A layer with a budget of K tokens holds at most K. The step of token i (counted from 0): if i >= K, the token with
 * the highest score goes, ties to the oldest; then i enters, attends to what is held (itself included) and the scores
 * follow. What has gone is gone for all later rows of the layer. */
#ifndef WINNOW_KV_H
#define WINNOW_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/attention.h"
#include "winnow/context.h"
#include "winnow/model.h"

WN_STABLE_BEGIN

/* An eviction policy: its number, from 0 to wn_policy_count() - 1. Budgets begin with the first, "selective". */
typedef int wn_policy;
typedef struct wn_policy_info {
  const char *name, *summary; /* "h2o", and in one line which token goes */
  bool per_kv_head;           /* each key-value head may evict for itself */
  bool cache_positions;       /* positions may be places in the cache */
  bool selective;             /* only for models with selective attention */
} wn_policy_info;
#define WN_POLICY_MAX 32 /* more than there can be */
int wn_policy_count(void);
const wn_policy_info *wn_policy_at(wn_policy policy); /* NULL: there is none of that number */
bool wn_policy_find(const char *name, wn_policy *out);
const char *wn_policy_name(wn_policy policy); /* "?": there is none of that number */
/* The key of option i of a policy in budgets.json, NULL after the last; *help (may be NULL): what it does. */
const char *wn_policy_option(wn_policy policy, int i, const char **help);
/* Does the attention have what the policy looks at? */
bool wn_policy_suits(wn_policy policy, const wn_attention_config *config);

/* What the keys and values in a cache are kept as. */
typedef enum wn_cache_format {
  WN_CACHE_FLOAT, /* "float": as the model computes them */
  WN_CACHE_HALF, /* "half": in half floats: half the bytes, and of each number 11 bits; beyond 65504 it is infinite. F32
                    models on the cpu backend with AVX2, heads of at most 256; not with strides, the square-root mask,
                    thresholds, exclusive attention, positions by place: WN_ERR_UNSUPPORTED names what stands in the way
                  */
  WN_CACHE_AUTO  /* "auto": half where the model's matrices came from a file in 16 bits or fewer and nothing stands in
                    the  way, else float */
} wn_cache_format;
#define WN_CACHE_COUNT 3
const char *wn_cache_format_name(wn_cache_format format);

/* How a policy pools over neighbouring tokens. */
typedef enum wn_pool { WN_POOL_MEAN, WN_POOL_MAX } wn_pool;

/* Budgets of every layer. Owns `tokens` and `head_tokens`; a zero wn_budgets means none. */
typedef struct wn_budgets {
  wn_policy policy;
  int64_t layers;
  int64_t *tokens;      /* [layers], each >= 1; a budget of the context or more never evicts */
  int64_t heads;        /* 0: all key-value heads of a layer have its budget; else the model's key-value heads */
  int64_t *head_tokens; /* [layers,heads], each >= 1: budgets of single heads, for policies that decide for each of them
                           (per_kv_head, or "selective" with a selection for each). tokens[l] is the layer's largest */
  bool per_kv_head;     /* h2o, tova, random: each key-value head evicts for itself */
  wn_cache_format cache; /* of the cache whose bytes wn_budgets_parse counts; not AUTO, not saved; default float */
  int64_t sinks;         /* streaming: tokens kept for ever, of a budget of K at most K-1; default 4 */
  bool cache_positions;  /* streaming: a token's position is its place in the cache, as the paper has it; default false:
                            in the  text. Needs rotary or relative positions */
  double recent;         /* h2o: the part of the budget that goes to the most recent tokens; default 0.5 */
  uint64_t seed;         /* random */
  struct {
    int64_t rows; /* snapkv: the last rows, that vote; as many recent tokens stay, at most half of the budget; default
                     32. The cache keeps so many numbers of each token */
    int64_t neighbours; /* votes are pooled over so many positions on each side; 0: none; default 2 */
    wn_pool pool;       /* default the mean */
  } snapkv;
} wn_budgets;
void wn_budgets_init(wn_budgets *budgets);
void wn_budgets_clear(wn_budgets *budgets);
/* `text` is a number of tokens for every layer ("64"), one for each ("64,64,32,96"), one for each key-value head of a
 * layer ("64:16" in every layer, "64:16,32:32,8:8,96:96"), a part of the context ("0.25"), bytes a sequence over all
 * layers ("2MiB"), or a budgets.json or a checkpoint's folder that has one (then its policy too). The policy and its
 * choices in *out stand unless a file gives them. */
wn_status wn_budgets_parse(wn_context *ctx, const wn_model_config *config, const char *text, wn_budgets *out);
/* Keys of budgets.json by text: "recent=0.25,per_kv_head=true". */
wn_status wn_budgets_set(wn_context *ctx, const char *assignments, wn_budgets *out);
wn_status wn_budgets_load(wn_context *ctx, const char *path, wn_budgets *out);
wn_status wn_budgets_save(wn_context *ctx, const wn_budgets *budgets, const char *path);
/* WN_ERR_CONFIG says why these budgets do not go with this model. */
wn_status wn_budgets_check(wn_context *ctx, const wn_budgets *budgets, const wn_model_config *config);
/* Sum over the layers; of heads with budgets of their own the mean, the sum rounded to the nearest. */
int64_t wn_budgets_total(const wn_budgets *budgets);
/* K of one key-value head; layer and head within the budgets. */
int64_t wn_budgets_of(const wn_budgets *budgets, int64_t layer, int64_t kv_head);

WN_API_END
WN_EXPERIMENTAL_BEGIN

/* P of the evictions of one attention call, the groups of key-value heads that evict for themselves: 1, or Hkv. */
int64_t wn_attention_eviction_groups(const wn_attention_config *config, const wn_attention_arrays *arrays,
                                     const wn_budgets *budgets);
/* The evictions of one attention call on whole sequences under the budgets of layer 0: gone [B,P,T], the caller's, the
 * position of the first row that no longer sees the key; INT32_MAX where there is none. Put into arrays->gone they make
 * the call attend as decoding under the budget would. */
wn_status wn_attention_evictions(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays,
                                 const wn_budgets *budgets, int32_t *gone);

WN_API_END
WN_STABLE_BEGIN

/* wn_model_logits with the budgets in force, each document by itself: what decoding under them gives. NULL: none. */
wn_status wn_model_logits_with_budgets(wn_context *ctx, wn_model *model, const int32_t *tokens,
                                       const int32_t *doc_start, int64_t B, int64_t T, const wn_budgets *budgets,
                                       float *logits);

/* Of an encoder-decoder: the decoder's logits [B,T,V] for tokens [B,T] behind inputs [B,S], S at most its
 * encoder.context; input_count [B] or NULL: tokens of each row, the rest is padding. budgets: of the decoder's own keys
 * and values; NULL: none. What wn_session_encode and wn_session_feed give. */
wn_status wn_model_logits_of_inputs(wn_context *ctx, wn_model *model, const int32_t *inputs, const int32_t *input_count,
                                    int64_t S, const int32_t *tokens, int64_t B, int64_t T, const wn_budgets *budgets,
                                    float *logits);

/* A session (model.h) whose caches keep to the budgets, which are copied. capacity: the longest text. */
wn_status wn_session_create_with_budgets(wn_context *ctx, wn_model *model, int64_t B, int64_t capacity,
                                         const wn_budgets *budgets, wn_session **out);
/* The same with all choices. */
typedef struct wn_session_options {
  size_t size;               /* sizeof the struct (context.h) */
  int64_t sequences;         /* B in step */
  int64_t capacity;          /* the longest text; 0: the model's context and memory */
  const wn_budgets *budgets; /* NULL: nothing is evicted */
  wn_cache_format cache;     /* default WN_CACHE_FLOAT */
} wn_session_options;
wn_status wn_session_create_with(wn_context *ctx, wn_model *model, const wn_session_options *options, wn_session **out);
/* What `format` stands for with this model under these budgets (NULL: none), of which cache_positions counts:
 * WN_CACHE_FLOAT or WN_CACHE_HALF. */
wn_cache_format wn_cache_format_resolve(const wn_context *ctx, const wn_model *model, const wn_budgets *budgets,
                                        wn_cache_format format);

WN_API_END
#endif
