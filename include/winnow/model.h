/* winnow: the decoder, alone or with an encoder, and its checkpoints. A checkpoint is a folder with config.json,
 * model.safetensors and the tokenizer's files. */
#ifndef WINNOW_MODEL_H
#define WINNOW_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/attention.h"
#include "winnow/context.h"
#include "winnow/declared.h"
#include "winnow/gguf.h"
#include "winnow/kv.h"
#include "winnow/safetensors.h"
#include "winnow/tokenizer.h"

WN_STABLE_BEGIN

/* The kinds of norms. */
typedef enum wn_norm_kind { WN_NORM_RMS, WN_NORM_LAYER } wn_norm_kind; /* "rmsnorm", "layernorm" */
typedef enum wn_norm_place {
  WN_NORM_PRE,
  WN_NORM_POST,
  WN_NORM_BOTH,
  WN_NORM_BRANCH
} wn_norm_place; /* "pre", "post", "both", "branch" */
typedef enum wn_position_kind {
  WN_POS_NONE,
  WN_POS_LEARNED,
  WN_POS_ROPE
} wn_position_kind; /* "none", "learned", "rope" */
typedef enum wn_ffn_kind {
  WN_FFN_SWIGLU,
  WN_FFN_GELU,
  WN_FFN_RELU,
  WN_FFN_GELU_ERF,
  WN_FFN_GEGLU,
  WN_FFN_RELU2
} wn_ffn_kind; /* "swiglu", "gelu" (tanh), "relu", "gelu_erf", "geglu" (tanh), "relu2" (the square of relu) */
/* Pairs of elements that are rotated together: (i, i + R/2), as in Hugging Face's Llama, or (2i, 2i+1), as in the paper
 * and GGUF's llama. */
typedef enum wn_rope_pairs { WN_ROPE_HALVES, WN_ROPE_ADJACENT } wn_rope_pairs; /* "halves", "adjacent" */
/* How rotary angles are scaled beyond the context of the original training.
 *   "none": not at all.
 *   "linear": positions are divided by the factor (Chen et al. 2023).
 *   "dynamic": the base grows with the text (dynamic NTK).
 *   "llama3": by wavelength (Llama 3.1).
 *   "yarn": by wavelength, with a factor on cos and sin (YaRN, Peng et al. 2023).
 *   "longrope": by two tensors of divisors, one for texts up to the original context, one for longer ones, with a
 *   factor on cos and sin (LongRoPE, Ding et al. 2024: Phi-3). */
typedef enum wn_rope_scaling {
  WN_ROPE_PLAIN,
  WN_ROPE_LINEAR,
  WN_ROPE_DYNAMIC,
  WN_ROPE_LLAMA3,
  WN_ROPE_YARN,
  WN_ROPE_LONG
} wn_rope_scaling; /* "none", "linear", "dynamic", "llama3", "yarn", "longrope" */

#define WN_INIT_BYTES 48 /* of a rule in "init", with its NUL */

/* The "model" object of a recipe and the config.json of a checkpoint. */
typedef struct wn_model_config {
  int64_t vocab_size, context;        /* V; the longest sequence (rows of the learned position table) */
  int64_t layers, width;              /* L, C */
  int64_t heads, kv_heads, head_size; /* H, Hkv (0: heads), D (0: width/heads) */
  int64_t ffn_width;                  /* 0: floor(8*width/3) with a gate (swiglu, geglu), 4*width otherwise */
  wn_norm_kind norm;
  /* where norms stand. pre: before attention and feed-forward, and one at the end. post: after the residual additions,
   * none at the end. both: as pre, and one on each branch's output before it is added (Gemma 2). branch: only on each
   * branch's output, and one at the end (OLMo 2) */
  wn_norm_place norm_place;
  bool embed_norm;       /* a norm after the embedding */
  double norm_eps;       /* 1e-6 */
  double embed_scale;    /* factor on the token embedding (Gemma: the root of width); 0: 1 */
  double residual_scale; /* factor on what each branch adds to the residual stream (Granite); 0: 1 */
  double logit_divisor;  /* logits are divided by it, before they are capped (Granite); 0: 1 */
  double logit_softcap;  /* logits are cap tanh(logit / cap) (Gemma 2); 0: off */
  wn_position_kind position;
  double rope_theta;       /* 10000 */
  double rope_local_theta; /* the base in layers that have attention's window; these then ignore rope_scaling and
                              rope_factors (Gemma 3). 0: as in all other layers */
  wn_rope_pairs rope_pairs;
  int64_t rope_size; /* R: the first so many elements of each head are rotated; even; 0: D */
  bool rope_factors; /* frequencies are divided by a tensor rope.factors [R/2] (GGUF's rope_freqs.weight) */
  struct {
    wn_rope_scaling type;
    double factor;                            /* 1 */
    int64_t context;                          /* of the original training; 0: context */
    double low_freq_factor, high_freq_factor; /* llama3: 1, 4 */
    double attention_factor;                  /* multiplies cos and sin; 0: yarn 1 + 0.1 ln(factor), longrope sqrt(1 +
                                                 ln(factor)/ln(context)) */
    double beta_fast, beta_slow; /* yarn: frequencies with more turns than beta_fast within the context are unchanged,
                                    those with fewer than beta_slow are divided by the factor; 32, 1 */
    bool truncate;               /* yarn: the two bounds are rounded to whole dimensions; true */
  } rope_scaling;
  wn_ffn_kind ffn;
  struct {          /* a mixture of experts in place of each layer's feed-forward (Shazeer et al. 2017) */
    int64_t count;  /* number of experts, each a feed-forward "swiglu" of ffn_width; 0: none */
    int64_t active; /* how many experts each token takes: those to which the router gives the largest probabilities */
    bool normalize; /* true: their weights are scaled to add up to 1 (Mixtral, Qwen3); false: they are the router's
                       probabilities */
    int64_t shared_width; /* width of one more expert that every token takes (Qwen2-MoE); 0: none */
    bool shared_gate;     /* its output is multiplied by a learned sigmoid of the token */
    double balance; /* training: factor of the load-balancing loss, a mean over layers of count * sum over experts of
                       (share of tokens that choose the expert * its mean probability) (Fedus et al. 2021) */
  } experts;
  bool qk_norm; /* a norm of the kind `norm` over each head of q and of k; each layer learns one weight [D] for q and
                   one for k */
  bool qk_norm_whole; /* that norm is over all heads of q together and over all of k, with weights of size H D and Hkv D
                         (OLMo 2); needs qk_norm */
  bool bias;          /* on every linear map and LayerNorm */
  bool qkv_bias;      /* on the maps to q, k and v, whatever `bias` is (Qwen2) */
  bool tied;          /* output shares the embedding */
  bool out_bias;      /* on attention's map to the stream, whatever `bias` is (Llama's attention_bias alone) */
  double dropout;     /* after the embedding and on both residual branches, training only */
  double dropout_hidden; /* on the feed-forward's inner activations, training only */
  int64_t recurrence; /* segment recurrence (Dai et al. 2019): how many tokens of a stream's earlier blocks each layer
                         keeps; 0: none. Training needs data.stream */
  struct {            /* encoder-decoder (Raffel et al. 2020, section 2.1) */
    int64_t layers; /* 0: a decoder alone. The encoder has the decoder's width, heads and feed-forward; its attention is
                       bidirectional and takes scale, dropout and buckets (with a table of its own) from `attention`.
                       Each decoder layer attends to the encoder's output after its own attention */
    int64_t context; /* tokens of the longest input; 0: context */
    bool selective;  /* default false; true: the encoder's attention is selective, with the choices of
                        attention.selective except mem, whether the decoder's is or not */
  } encoder;
  double init_std; /* 0.02; projections into the residual stream are scaled by 1/sqrt(2*layers) */
  struct { /* another initialisation for a class of tensors: "normal S" or "uniform S" (between -S and S). S is a number
              or A/sqrt(B); B is fan_in (the tensor's columns), width or head_size. "": init_std */
    char embeddings[WN_INIT_BYTES], positions[WN_INIT_BYTES]; /* positions: learned, and relative vectors */
    char q[WN_INIT_BYTES], k[WN_INIT_BYTES], v[WN_INIT_BYTES], output[WN_INIT_BYTES]; /* of attention */
    char ffn_in[WN_INIT_BYTES], ffn_out[WN_INIT_BYTES];
    char logits[WN_INIT_BYTES]; /* the output, where it is not tied */
  } init;
  wn_attention_config attention;
  uint64_t reserved[32]; /* 0: room for what later versions add */
} wn_model_config;
void wn_model_config_init(wn_model_config *config);
/* Replaces zeros that mean a default and checks every field: WN_ERR_CONFIG names the first that is wrong. */
wn_status wn_model_config_resolve(wn_context *ctx, wn_model_config *config);

/* A model: its configuration and its parameters; opaque. */
typedef struct wn_model wn_model;

/* New parameters from (config, seed): normal with init_std or as config->init says, norms' weights 1, biases 0. They
 * depend neither on threads nor on the backend. */
wn_status wn_model_create(wn_context *ctx, const wn_model_config *config, uint64_t seed, wn_model **out);
/* Whether loading searches a file's weights for NaN and infinity, which are WN_ERR_FORMAT with the tensor's name. The
 * check reads the whole file once, at about the speed of memory (docs/real-models.md). Checksums that winnow wrote are
 * compared whatever the file's size, except with WN_CHECK_NO. */
typedef enum wn_check {
  WN_CHECK_AUTO, /* weights of up to 1 GiB, and all that are copied as they are loaded (floats, vectors) */
  WN_CHECK_YES,
  WN_CHECK_NO
} wn_check;
/* How the matrices of a model are held in memory. */
typedef enum wn_weights {
  WN_WEIGHTS_AUTO, /* in the file's types: float32 is copied; matrices of fewer bits stay in the mapped file, except
                      that blocks (Q8_0, Q4_1, ...) are copied into the order that this processor multiplies fastest,
                      where there is one */
  WN_WEIGHTS_FILE, /* in the file's types; matrices of fewer than 32 bits are never copied, so that processes which use
                      the same file share its memory. The results are the same, to the bit */
  WN_WEIGHTS_BFLOAT16, /* as WN_WEIGHTS_AUTO, but float32 matrices are rounded to bfloat16, which halves their memory */
} wn_weights;
typedef struct wn_model_load_options {
  size_t size;            /* sizeof the struct (context.h) */
  bool as_float;          /* every parameter is copied to float32, for callers that read or change parameters: training,
                             saving */
  wn_check check_tensors; /* WN_CHECK_AUTO */
  wn_weights weights;     /* WN_WEIGHTS_AUTO; as_float allows no other */
  const char *adapter; /* a folder of Hugging Face's peft (adapter_config.json, adapter_model.safetensors). Its low-rank
                          updates are added to the projections on loading; these are then held in float32. NULL: none */
  void (*progress)(void *user, uint64_t done, uint64_t total); /* in bytes of weights checked and copied; `done` grows
                                                                  to `total` unless the call fails. NULL: not told */
  void *user;
} wn_model_load_options;
/* A model of any of these forms, recognised by what lies at the path:
 *   a checkpoint folder of winnow (config.json, model.safetensors);
 *   a folder of Hugging Face transformers (config.json with a model_type of a family that winnow knows; weights in
 *   model.safetensors or in the shards of model.safetensors.index.json, of F32, F16 or BF16);
 *   a GGUF file (a general.architecture of such a family; every type of wn_gguf_type).
 * The families are listed in docs/real-models.md, and by the message that refuses another.
 * Matrices of fewer than 32 bits are used as the file stores them: the file stays mapped as long as the model lives.
 * What is not supported is refused with a message that names the file, the key and the known values.
 * docs/real-models.md says more. options NULL: the defaults. */
wn_status wn_model_load(wn_context *ctx, const char *path, const wn_model_load_options *options, wn_model **out);
/* The format of the model at a path. Only its configuration is read; no model is made, no tensor is checked. */
typedef struct wn_model_origin {
  const char *format;    /* "winnow checkpoint", "Hugging Face folder", "GGUF file" */
  char architecture[64]; /* as the file names it: "llama", "qwen2", ..., "winnow" */
} wn_model_origin;
wn_status wn_model_origin_read(wn_context *ctx, const char *path, wn_model_origin *out);
/* Writes config.json, model.safetensors and the tokenizer's files, which are replaced as one: a failure, a kill or a
 * full disk at any moment leaves either the old model or the new one. Other files of the folder stay. tok may be NULL:
 * no tokenizer is written. */
wn_status wn_model_save(wn_context *ctx, const wn_model *model, const wn_tokenizer *tok, const char *dir);
/* NULL is allowed. Sessions, their groups and trainers keep the model's memory until the last of them is destroyed;
 * nothing else may be made with it. */
void wn_model_destroy(wn_model *model);

/* The configuration, owned by the model. */
const wn_model_config *wn_model_config_get(const wn_model *model);
/* The config as JSON text, allocated; free with wn_text_free. */
wn_status wn_model_config_json(wn_context *ctx, const wn_model_config *config, char **out);
uint64_t wn_model_parameter_count(const wn_model *model);
int wn_model_tensor_count(const wn_model *model);
/* Parameter tensor i: name, shape and a borrowed pointer to its float32 values. WN_ERR_UNSUPPORTED where the model uses
 * the tensor in the file's packed form. */
wn_status wn_model_tensor_at(const wn_model *model, int i, wn_safetensors_entry *out);
/* A description of tensor i, however its values are stored: in one part, or in up to three parts of consecutive rows,
 * each with a storage type of its own. */
typedef struct wn_tensor_info {
  const char *name;
  int ndim;
  int64_t shape[3];
  int parts;
  wn_gguf_type types[3];
  size_t bytes;
} wn_tensor_info;
wn_status wn_model_tensor_info(const wn_model *model, int i, wn_tensor_info *out);

/* Changes the attention of a loaded model, not its files: "threshold.tau=0.9", "sqrt.buffer=64", "window=0". Keys are
 * those of config.json's "attention"; setting a key inside an object also enables that object. A change that needs
 * parameters which the model lacks is WN_ERR_CONFIG. Sessions and trainers that exist already must not be used
 * afterwards. */
wn_status wn_model_set_attention(wn_context *ctx, wn_model *model, const char *assignment);
/* Sets the tokens that a threshold always keeps and does not count, wherever they occur (Fernandez, Unsal, section
 * 4.3): ids [count] of the vocabulary; count 0: none. Sessions that exist already must not be used afterwards. */
wn_status wn_model_set_control_tokens(wn_context *ctx, wn_model *model, const int32_t *ids, int64_t count);

/* Decoding with a key-value cache. */
typedef struct wn_session wn_session;
void wn_session_destroy(wn_session *session); /* NULL is allowed */
void wn_session_reset(wn_session *session);
int64_t wn_session_position(const wn_session *session); /* tokens seen so far */
/* everything allocated for the caches: keys, values, F, positions, a policy's notes */
size_t wn_session_kv_bytes(const wn_session *session);
/* Feeds T >= 1 tokens per sequence, tokens [B,T] (a prompt, a chunk of it, or one token), in pieces of at most `chunk`
 * tokens (0: a size of winnow's choice). logits [B,V] of the last position, may be NULL. */
wn_status wn_session_feed(wn_context *ctx, wn_session *session, const int32_t *tokens, int64_t T, int64_t chunk,
                          float *logits);

/* The context has been read and ends here: under budgets with `when` "prompt" or "hold" each layer keeps its budget of
 * the tokens held, chosen by the policy all at once, and frees the memory of the rest. What follows keeps its
 * positions. After "prompt" the caches grow again, a few tokens at a time; after "hold" one token goes for each that
 * comes. Under other budgets and without it does nothing. A session can be compressed again, later in the text. The
 * last token's logits stay known. Allocates one layer's smaller cache at a time. */
wn_status wn_session_compress(wn_context *ctx, wn_session *session);

/* Reads a whole context and ends it: wn_session_feed, cut as a generation cuts its prompt, and wn_session_compress,
 * with the same bits. An empty session reads layer by layer: each layer reads all tokens and is compressed before the
 * next one begins, so that one layer at a time is held in full, beside the rows' residual stream, T C numbers for each
 * sequence. kvzip, which reads twice, holds everything. After a failure the session is as before. A prompt of
 * wn_session_generate is read in the same way.
 */
wn_status wn_session_read_context(wn_context *ctx, wn_session *session, const int32_t *tokens, int64_t T,
                                  float *logits);

/* With the method kvzip, which asks the model to repeat the context: the tokenizer for the request. Called before
 * wn_session_compress; generation with a tokenizer does it by itself. after: what follows the request, such as a chat
 * template's end of a turn; NULL: a line break. With another method nothing happens. */
wn_status wn_session_repeat_with(wn_context *ctx, wn_session *session, const wn_tokenizer *tok, const char *after);

/* Copies the state of `from` into `to`, which forgets its own: the tokens held, marks of control tokens still to come,
 * and counts. It forks a text (one to several), keeps a snapshot, or rolls back to one. The sequences of `to` are n
 * times those of `from`, and its sequence b becomes a copy of sequence b / n; or with rows [sequences of `to`] of
 * sequence rows[b]. Both were created with the same model,
 * budgets, tau, control_marks and cache format. Capacities may differ if what `from` has seen fits into `to`, no budget
 * or window is as long as the shorter capacity, and rope scaling is not "dynamic" (beyond the model's context its
 * angles depend on the capacity). */
wn_status wn_session_copy(wn_context *ctx, wn_session *to, const wn_session *from, const int64_t *rows);

/* Encoder-decoder: runs the encoder over inputs [B,S] and keeps the keys and values that the decoder's layers read;
 * tokens are fed after that. input_count [B] or NULL: tokens of each row, the rest is padding. Forgets the tokens fed
 * so far. Allocates B*S keys and values per layer, which wn_session_kv_bytes counts. */
wn_status wn_session_encode(wn_context *ctx, wn_session *session, const int32_t *inputs, const int32_t *input_count,
                            int64_t S);

/* Budgets of the key-value cache (kv.h) for a model. `text` is one of
 *   a number of tokens for every layer: "64";
 *   one for each layer: "64,64,32,96";
 *   one for each key-value head: "64:16" in every layer, "64:16,32:32,8:8,96:96";
 *   a fraction of the context: "0.25";
 *   a share of the tokens that will have been read when the context ends, "25%" (share in wn_budgets);
 *   a threshold and no budget, "tau=0.69" (WN_ALLOT_TAU, and per_kv_head where the policy has it);
 *   bytes per sequence over all layers: "2MiB";
 *   a budgets.json, or a checkpoint's folder with one, which also gives the policy.
 *   The policy and its options in *out stay unless a file gives them. */
wn_status wn_budgets_parse(wn_context *ctx, const wn_model_config *config, const char *text, wn_budgets *out);
/* Do these budgets suit this model? WN_ERR_CONFIG says why not. */
wn_status wn_budgets_check(wn_context *ctx, const wn_budgets *budgets, const wn_model_config *config);

/* What the encoder of an encoder-decoder reads: tokens [B,S], S at most encoder.context. */
typedef struct wn_model_inputs {
  const int32_t *tokens; /* [B,S] */
  const int32_t *count;  /* [B] tokens of each row, the rest is padding; NULL: S in all */
  int64_t S;
} wn_model_inputs;
/* How logits of whole sequences are computed. */
typedef struct wn_logits_options {
  size_t size;                   /* sizeof the struct (context.h) */
  const int32_t *doc_start;      /* [B,T] where the document of each token begins in its row; NULL: at 0 */
  const wn_budgets *budgets;     /* in force for each document by itself: the logits that decoding under them gives */
  const wn_model_inputs *inputs; /* of an encoder-decoder: the logits that wn_session_encode and wn_session_feed give;
                                    without doc_start. NULL: a decoder alone */
} wn_logits_options;
/* Logits of whole sequences: tokens [B,T], logits [B,T,V] float32. options NULL: one document a row, no budgets. For
 * tests, analysis and outside programs; training and evaluation never hold all logits. */
wn_status wn_model_logits(wn_context *ctx, wn_model *model, const int32_t *tokens, int64_t B, int64_t T,
                          const wn_logits_options *options, float *logits);

/* What a session is created with. */
typedef struct wn_session_options {
  size_t size;               /* sizeof the struct (context.h) */
  int64_t sequences;         /* B, which advance together; 0: 1 */
  int64_t capacity;          /* the longest text; 0: the model's context and recurrence */
  const wn_budgets *budgets; /* copied; NULL: nothing is evicted */
  wn_cache_format cache;     /* default WN_CACHE_FLOAT */
  /* threshold (meaningful attention): each row keeps the fewest keys whose weights reach this share, above 0 and at
   * most 1. 0: as the model's attention says; WN_TAU_NONE: no threshold, whatever the model says */
  double tau;
  struct wn_session_group *group; /* the session reads prompts in this group's memory (session_group.h); NULL: in its
                                     own. Borrowed, of the same model, must outlive the session */
  bool counts; /* the session counts the tokens that the threshold keeps (wn_session_counts); needs a threshold */
  bool control_marks; /* control tokens may be marked by position (wn_session_mark_control); needs a threshold */
} wn_session_options;
#define WN_TAU_NONE (-1.0)
/* options NULL: the defaults. A layer's cache holds what the layer can see: all tokens, or those that its window or its
 * widest current span reaches, or its budget. */
wn_status wn_session_create(wn_context *ctx, wn_model *model, const wn_session_options *options, wn_session **out);
/* The format that `format` stands for with this model: AUTO stands for FLOAT or HALF. Of the budgets (NULL: none)
 * only cache_positions matters. */
wn_cache_format wn_cache_format_resolve(const wn_context *ctx, const wn_model *model, const wn_budgets *budgets,
                                        wn_cache_format format);

/* How a token is drawn from logits. */
typedef struct wn_sampling {
  double temperature; /* 0: greedy */
  int top_k;          /* 0: off */
  double top_p;       /* 1: off */
  uint64_t seed;
  double min_p; /* tokens whose probability before temperature is below this share of the most probable token's are left
                   out; 0: off (Nguyen et al. 2024) */
  uint64_t reserved[8]; /* 0: room for what later versions add */
} wn_sampling;
void wn_sampling_init(wn_sampling *sampling); /* temperature 0.8, top_k 0, top_p 0.95, seed 0, min_p 0 */
/* Draws a token from logits [V]; deterministic in (seed, step). */
wn_status wn_sample(wn_context *ctx, const float *logits, int64_t V, const wn_sampling *sampling, uint64_t step,
                    int32_t *token);

WN_API_END
WN_EXPERIMENTAL_BEGIN

/* What the model's files declare about generating, owned by the model. Generations end at its end tokens and do not
 * draw what it suppresses; its numbers are for wn_generate_options_declared. */
const wn_declared *wn_model_declared(const wn_model *model);

/* Changes the policy of `budgets` to `policy` and keeps the tokens of every layer and head. The options per_kv_head and
 * cache_positions are dropped where the new policy lacks them. Then checks the result as wn_budgets_check does, without
 * the tokens where there are none (layers 0). */
wn_status wn_budgets_move(wn_context *ctx, const wn_model_config *config, wn_policy policy, wn_budgets *budgets);

/* What the caches hold now. heads [wn_session_position] receives, for every position of sequence `sequence`, how many
 * key-value heads of layer `layer` hold its key and value; 0: the layer has dropped the token. Without budgets and
 * windows every head holds every token. */
wn_status wn_session_held(wn_context *ctx, const wn_session *session, int64_t sequence, int64_t layer, int32_t *heads);
/* For a session made with `counts`: how many content tokens the threshold kept for the last token fed, counts [layers,
 * heads]. *context: tokens of the text up to and including that one; *content: the content tokens among them. Each of
 * the three may be NULL. Under budgets only what the cache holds is counted. */
wn_status wn_session_counts(wn_context *ctx, const wn_session *session, int64_t sequence, int32_t *counts,
                            int64_t *context, int64_t *content);
/* For a session made with `control_marks`: makes positions first to first+count-1 of a sequence, which are still to be
 * fed, control tokens (instructions, delimiters), whatever wn_model_set_control_tokens says of their ids.
 * wn_session_reset forgets the marks. */
wn_status wn_session_mark_control(wn_context *ctx, wn_session *session, int64_t sequence, int64_t first, int64_t count);
/* Pins positions first to first+count-1 of every sequence: no eviction and no compression takes their tokens, whatever
 * the policy. Pinned before they are fed they stay from the start; of those that were fed, what is still held stays.
 * They count against the budget, which must be larger: WN_ERR_ARGUMENT says both numbers. At most 32 ranges that do not
 * touch; not with cache_positions. A copy has its original's pins; wn_session_reset forgets them. */
wn_status wn_session_pin(wn_context *ctx, wn_session *session, int64_t first, int64_t count);
/* The positions that key-value head `kv_head` of a layer holds, ascending: positions [wn_session_position] receives
 * *count of them. */
wn_status wn_session_kept(wn_context *ctx, const wn_session *session, int64_t sequence, int64_t layer, int64_t kv_head,
                          int32_t *positions, int64_t *count);
/* The most bytes that the caches have had together since the session was created or reset: while a context is read,
 * with its residual stream where it is read layer by layer, and while a compression has a layer's old and new cache. */
size_t wn_session_peak_bytes(const wn_session *session);
/* Writes what the session holds to a file, and reads it back into a session that was created with the same options, of
 * the same model, loaded in the same way on the same kind of processor. It then continues with the same bits as the one
 * that was saved; only the counts of wn_session_counts are not known until a token is fed. Capacities may differ as for
 * wn_session_copy. The file has the model's fingerprint, sizes and checksums. WN_ERR_CONFIG names the first thing that
 * differs, WN_ERR_FORMAT what is wrong with the file; the session is then as it was. WN_ERR_UNSUPPORTED: sessions that
 * have encoded inputs, or whose budgets have a method, an allot other than uniform, `critical`, or a policy of the
 * caller's own. */
wn_status wn_session_save(wn_context *ctx, const wn_session *session, const char *path);
wn_status wn_session_load(wn_context *ctx, wn_session *session, const char *path);
/* Takes back all tokens from `position` on, 0 to wn_session_position; then feed what follows. WN_ERR_UNSUPPORTED where
 * a layer no longer knows what it held: after an eviction, with selective attention, under a policy that keeps sums. */
wn_status wn_session_cut(wn_context *ctx, wn_session *session, int64_t position);
/* The share of wn_session_kv_bytes that the tokens held now take; the rest is room for later tokens. */
size_t wn_session_held_bytes(const wn_session *session);

WN_API_END
#endif
