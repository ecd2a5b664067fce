/* The model's configuration: defaults, table of keys, checks that involve several keys, config.json. */
#include "model/config.h"

#include <string.h>

#include "attention/registry.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/misuse.h"
#include "model/init.h"
#include "ops/ops.h"

#define AT(member) offsetof(wn_model_config, member)
#define DEFAULT_CONTEXT 512

static const char *const norm_names[] = {"rmsnorm", "layernorm", NULL};
static const char *const place_names[] = {"pre", "post", "both", "branch", NULL};
static const char *const position_names[] = {"none", "learned", "rope", NULL};
static const char *const pairs_names[] = {"halves", "adjacent", NULL};
static const char *const scaling_names[] = {"none", "linear", "dynamic", "llama3", "yarn", "longrope", NULL};
static const char *const ffn_names[] = {"swiglu", "gelu", "relu", "gelu_erf", "geglu", NULL};

static const struct wn_field fields[] = {
    {.key = "vocab_size",
     .type = WN_FIELD_INT64,
     .offset = AT(vocab_size),
     .min = 0,
     .max = WN_LIMIT_VOCABULARY,
     .help = "0: the data's"},
    {.key = "context",
     .type = WN_FIELD_INT64,
     .offset = AT(context),
     .min = 0,
     .max = 1 << 24,
     .help = "longest sequence; 0: the task's, or 512"},
    {.key = "layers",
     .type = WN_FIELD_INT64,
     .offset = AT(layers),
     .min = 1,
     .max = 4096,
     .help = "layers of the decoder"},
    {.key = "width",
     .type = WN_FIELD_INT64,
     .offset = AT(width),
     .min = 1,
     .max = 1 << 18,
     .help = "size of the residual stream"},
    {.key = "heads", .type = WN_FIELD_INT64, .offset = AT(heads), .min = 1, .max = 4096, .help = "query heads"},
    {.key = "kv_heads",
     .type = WN_FIELD_INT64,
     .offset = AT(kv_heads),
     .min = 0,
     .max = 4096,
     .help = "key-value heads; 0: heads"},
    {.key = "head_size",
     .type = WN_FIELD_INT64,
     .offset = AT(head_size),
     .min = 0,
     .max = 4096,
     .help = "0: width/heads"},
    {.key = "ffn_width",
     .type = WN_FIELD_INT64,
     .offset = AT(ffn_width),
     .min = 0,
     .max = 1 << 20,
     .help = "inner size of the feed-forward; 0: floor(8*width/3) with a gate, else 4*width"},
    {.key = "norm",
     .type = WN_FIELD_ENUM,
     .offset = AT(norm),
     .names = norm_names,
     .help = "kind of the norms before attention, feed-forward and output"},
    {.key = "norm_place",
     .type = WN_FIELD_ENUM,
     .offset = AT(norm_place),
     .names = place_names,
     .help = "norms before attention and feed-forward, after the residual additions, before and on each branch's "
             "output, or on "
             "that output alone"},
    {.key = "embed_norm", .type = WN_FIELD_BOOL, .offset = AT(embed_norm), .help = "a norm after the embedding"},
    {.key = "norm_eps",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(norm_eps),
     .min = 1e-12,
     .max = 1,
     .help = "added under the square root"},
    {.key = "embed_scale",
     .type = WN_FIELD_EXTRA,
     .offset = AT(embed_scale),
     .min = 0,
     .max = 1e6,
     .help = "factor on the token embedding; 0: 1"},
    {.key = "residual_scale",
     .type = WN_FIELD_EXTRA,
     .offset = AT(residual_scale),
     .min = 0,
     .max = 1e6,
     .help = "factor on what each branch adds to the residual stream; 0: 1"},
    {.key = "logit_divisor",
     .type = WN_FIELD_EXTRA,
     .offset = AT(logit_divisor),
     .min = 0,
     .max = 1e6,
     .help = "logits are divided by it; 0: 1"},
    {.key = "logit_softcap",
     .type = WN_FIELD_EXTRA,
     .offset = AT(logit_softcap),
     .min = 0,
     .max = 1e6,
     .help = "logits are cap*tanh(logit/cap); 0: off"},
    {.key = "position",
     .type = WN_FIELD_ENUM,
     .offset = AT(position),
     .names = position_names,
     .help = "how positions enter the model"},
    {.key = "rope_theta",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(rope_theta),
     .min = 1,
     .max = 1e12,
     .help = "base of the rotary angles"},
    {.key = "rope_local_theta",
     .type = WN_FIELD_EXTRA,
     .offset = AT(rope_local_theta),
     .min = 0,
     .max = 1e12,
     .help = "base of the rotary angles in layers with attention.window, unscaled; 0: rope_theta"},
    {.key = "rope_pairs",
     .type = WN_FIELD_ENUM,
     .offset = AT(rope_pairs),
     .names = pairs_names,
     .help = "elements that rotate together: (i, i+R/2), or (2i, 2i+1)"},
    {.key = "rope_size",
     .type = WN_FIELD_INT64,
     .offset = AT(rope_size),
     .min = 0,
     .max = 4096,
     .help = "R: elements of each head that rotate; 0: all"},
    {.key = "rope_factors",
     .type = WN_FIELD_BOOL,
     .offset = AT(rope_factors),
     .help = "a tensor of divisors of the angles' frequencies"},
    {.key = "rope_scaling.type",
     .type = WN_FIELD_ENUM,
     .offset = AT(rope_scaling.type),
     .names = scaling_names,
     .help = "scaling of angles beyond the context of the original training"},
    {.key = "rope_scaling.factor",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(rope_scaling.factor),
     .min = 1e-3,
     .max = 1e6,
     .help = "factor of the scaling"},
    {.key = "rope_scaling.context",
     .type = WN_FIELD_INT64,
     .offset = AT(rope_scaling.context),
     .min = 0,
     .max = 1 << 24,
     .help = "context of the original training; 0: context"},
    {.key = "rope_scaling.low_freq_factor",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(rope_scaling.low_freq_factor),
     .min = 1e-6,
     .max = 1e6,
     .help = "llama3: frequencies with fewer turns than this within the context are divided by the factor"},
    {.key = "rope_scaling.high_freq_factor",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(rope_scaling.high_freq_factor),
     .min = 1e-6,
     .max = 1e6,
     .help = "llama3: frequencies with more turns than this are unchanged"},
    {.key = "rope_scaling.attention_factor",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(rope_scaling.attention_factor),
     .min = 0,
     .max = 1e6,
     .help = "factor on cos and sin; 0: yarn 1 + 0.1 ln(factor), longrope sqrt(1 + ln(factor)/ln(context))"},
    {.key = "rope_scaling.beta_fast",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(rope_scaling.beta_fast),
     .min = 1e-6,
     .max = 1e6,
     .help = "yarn: frequencies with more turns than this within the context are unchanged"},
    {.key = "rope_scaling.beta_slow",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(rope_scaling.beta_slow),
     .min = 1e-6,
     .max = 1e6,
     .help = "yarn: frequencies with fewer turns than this are divided by the factor"},
    {.key = "rope_scaling.truncate",
     .type = WN_FIELD_BOOL,
     .offset = AT(rope_scaling.truncate),
     .help = "yarn: round the two bounds to whole dimensions"},
    {.key = "ffn", .type = WN_FIELD_ENUM, .offset = AT(ffn), .names = ffn_names, .help = "kind of the feed-forward"},
    {.key = "experts.count",
     .type = WN_FIELD_EXTRA_INT64,
     .offset = AT(experts.count),
     .min = 0,
     .max = WN_EXPERTS_MAX,
     .help = "experts in place of each layer's feed-forward; 0: none"},
    {.key = "experts.active",
     .type = WN_FIELD_EXTRA_INT64,
     .offset = AT(experts.active),
     .min = 0,
     .max = WN_EXPERTS_TOP,
     .help = "experts that each token takes"},
    {.key = "experts.normalize",
     .type = WN_FIELD_EXTRA_BOOL,
     .offset = AT(experts.normalize),
     .help = "a token's weights of its experts add up to 1"},
    {.key = "experts.shared_width",
     .type = WN_FIELD_EXTRA_INT64,
     .offset = AT(experts.shared_width),
     .min = 0,
     .max = 1 << 20,
     .help = "inner size of one more expert, which every token takes; 0: none"},
    {.key = "experts.shared_gate",
     .type = WN_FIELD_EXTRA_BOOL,
     .offset = AT(experts.shared_gate),
     .help = "a learned gate on the shared expert"},
    {.key = "experts.balance",
     .type = WN_FIELD_EXTRA,
     .offset = AT(experts.balance),
     .min = 0,
     .max = 100,
     .help = "training: factor of the loss that evens out the experts' load"},
    {.key = "qk_norm", .type = WN_FIELD_BOOL, .offset = AT(qk_norm), .help = "a norm on each head of q and k"},
    {.key = "qk_norm_whole",
     .type = WN_FIELD_EXTRA_BOOL,
     .offset = AT(qk_norm_whole),
     .help = "the norm of q and k is over all heads together"},
    {.key = "bias", .type = WN_FIELD_BOOL, .offset = AT(bias), .help = "biases on every projection and LayerNorm"},
    {.key = "qkv_bias",
     .type = WN_FIELD_BOOL,
     .offset = AT(qkv_bias),
     .help = "biases on the projections q, k and v, independent of bias"},
    {.key = "tied", .type = WN_FIELD_BOOL, .offset = AT(tied), .help = "the output shares the embedding"},
    {.key = "dropout",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(dropout),
     .min = 0,
     .max = 0.999,
     .help = "after the embedding and on both residual branches"},
    {.key = "dropout_hidden",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(dropout_hidden),
     .min = 0,
     .max = 0.999,
     .help = "on the feed-forward's inner activations"},
    {.key = "memory",
     .type = WN_FIELD_INT64,
     .offset = AT(recurrence),
     .min = 0,
     .max = 1 << 24,
     .help = "segment recurrence: tokens of earlier blocks that every layer caches; 0: none"},
    {.key = "encoder.layers",
     .type = WN_FIELD_INT64,
     .offset = AT(encoder.layers),
     .min = 0,
     .max = 4096,
     .help = "layers of an encoder that the decoder attends to; 0: no encoder"},
    {.key = "encoder.context",
     .type = WN_FIELD_INT64,
     .offset = AT(encoder.context),
     .min = 0,
     .max = 1 << 24,
     .help = "longest input; 0: context"},
    {.key = "encoder.selective",
     .type = WN_FIELD_EXTRA_BOOL,
     .offset = AT(encoder.selective),
     .help = "selective attention in the encoder, with the other keys of attention.selective"},
    {.key = "init_std",
     .type = WN_FIELD_DOUBLE,
     .offset = AT(init_std),
     .min = 0,
     .max = 10,
     .help = "standard deviation of the initial weights"},
    {.key = "init.embeddings",
     .type = WN_FIELD_EXTRA_STRING,
     .offset = AT(init.embeddings),
     .min = 0,
     .max = WN_INIT_BYTES,
     .help = "start of the token embedding: \"normal S\" or \"uniform S\", S a number, 1/sqrt(fan_in), of width or of "
             "head_size"},
    {.key = "init.positions",
     .type = WN_FIELD_EXTRA_STRING,
     .offset = AT(init.positions),
     .min = 0,
     .max = WN_INIT_BYTES,
     .help = "start of learned positions and of relative position vectors"},
    {.key = "init.q",
     .type = WN_FIELD_EXTRA_STRING,
     .offset = AT(init.q),
     .min = 0,
     .max = WN_INIT_BYTES,
     .help = "start of the projections to queries"},
    {.key = "init.k",
     .type = WN_FIELD_EXTRA_STRING,
     .offset = AT(init.k),
     .min = 0,
     .max = WN_INIT_BYTES,
     .help = "start of the projections to keys"},
    {.key = "init.v",
     .type = WN_FIELD_EXTRA_STRING,
     .offset = AT(init.v),
     .min = 0,
     .max = WN_INIT_BYTES,
     .help = "start of the projections to values"},
    {.key = "init.output",
     .type = WN_FIELD_EXTRA_STRING,
     .offset = AT(init.output),
     .min = 0,
     .max = WN_INIT_BYTES,
     .help = "start of the attention's output projections"},
    {.key = "init.ffn_in",
     .type = WN_FIELD_EXTRA_STRING,
     .offset = AT(init.ffn_in),
     .min = 0,
     .max = WN_INIT_BYTES,
     .help = "start of the feed-forward's first projections"},
    {.key = "init.ffn_out",
     .type = WN_FIELD_EXTRA_STRING,
     .offset = AT(init.ffn_out),
     .min = 0,
     .max = WN_INIT_BYTES,
     .help = "start of the feed-forward's second projections"},
    {.key = "init.logits",
     .type = WN_FIELD_EXTRA_STRING,
     .offset = AT(init.logits),
     .min = 0,
     .max = WN_INIT_BYTES,
     .help = "start of the projection to logits, where it is not tied"},
};
#define FIELD_COUNT ((int)(sizeof fields / sizeof *fields))

void wn_model_config_init(wn_model_config *config) {
  WN_CHECK_OR(, WN_POINTER(config));
  *config = (wn_model_config){
      .layers = 6,
      .width = 384,
      .heads = 6,
      .norm = WN_NORM_RMS,
      .norm_eps = 1e-6,
      .position = WN_POS_LEARNED,
      .rope_theta = 10000,
      .rope_scaling =
          {.factor = 1, .low_freq_factor = 1, .high_freq_factor = 4, .beta_fast = 32, .beta_slow = 1, .truncate = true},
      .ffn = WN_FFN_SWIGLU,
      .init_std = 0.02,
  };
  wn_attention_config_init(&config->attention);
}

int wn_model_field_groups(const char *prefix, const char *attention_prefix, size_t base, struct wn_field_group *out) {
  out[0] = (struct wn_field_group){.prefix = prefix, .fields = fields, .count = FIELD_COUNT, .base = base};
  return 1 + wn_attention_field_groups(attention_prefix, base + AT(attention), out + 1);
}

/* C callers may fill the struct by hand, so the table's ranges are checked here too. */
static wn_status config_check_ranges(wn_context *ctx, const wn_model_config *config) {
  struct wn_field_group groups[WN_MODEL_FIELD_GROUPS_MAX];
  int count = wn_model_field_groups("", "attention", 0, groups);
  json_t *object;
  wn_model_config copy = *config;
  WN_TRY(wn_fields_write(ctx, groups, count, config, &object));
  wn_status status = wn_fields_read(ctx, "model", object, groups, count, &copy);
  json_decref(object);
  return status;
}

wn_status wn_model_recurrence_check(wn_context *ctx, const char *where, const wn_model_config *c) {
  if (c->position == WN_POS_LEARNED)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "%s: recurrence (memory) needs relative positions; position is \"learned\" (choose \"rope\" "
                   "or \"none\" with attention.relative)",
                   where);
  return WN_OK;
}

static wn_status config_check_longrope(wn_context *ctx, const wn_model_config *c) {
  enum { MOST = WN_ROPE_LONG_CONTEXT };
  const int64_t N = c->rope_scaling.context;
  if (c->rope_scaling.type != WN_ROPE_LONG) return WN_OK;
  if (N < 2 || N > MOST)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "model: rope_scaling \"longrope\" needs a rope_scaling.context from 2 to %d; it is %lld", (int)MOST,
                   (long long)N);
  if (c->rope_factors || c->encoder.layers > 0)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: rope_scaling \"longrope\" and %s exclude each other",
                   c->rope_factors ? "rope_factors" : "an encoder (encoder.layers)");
  return WN_OK;
}

static wn_status config_check_rotary(wn_context *ctx, const wn_model_config *c) {
  if (c->position != WN_POS_ROPE) {
    if (c->rope_factors || c->rope_scaling.type != WN_ROPE_PLAIN || c->rope_size != 0 || c->rope_local_theta > 0)
      return wn_fail(ctx, WN_ERR_CONFIG, "model: %s needs position \"rope\"",
                     c->rope_factors           ? "rope_factors"
                     : c->rope_local_theta > 0 ? "rope_local_theta"
                     : c->rope_size != 0       ? "rope_size"
                                               : "rope_scaling");
    return WN_OK;
  }
  const int64_t R = c->rope_size ? c->rope_size : c->head_size;
  if (R % 2 != 0 || R > c->head_size)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: position \"rope\" needs an even %s; it is %lld of %lld",
                   c->rope_size ? "rope_size up to head_size" : "head_size", (long long)R, (long long)c->head_size);
  if (c->rope_local_theta > 0 && (c->rope_local_theta < 1 || c->attention.window == 0))
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "model: rope_local_theta is %g; it must be at least 1, and attention.window say "
                   "which layers it is for",
                   c->rope_local_theta);
  if (c->rope_scaling.type == WN_ROPE_LLAMA3 && c->rope_scaling.high_freq_factor <= c->rope_scaling.low_freq_factor)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "model: rope_scaling.high_freq_factor is %g; it must be above low_freq_factor, %g",
                   c->rope_scaling.high_freq_factor, c->rope_scaling.low_freq_factor);
  if (c->rope_scaling.type == WN_ROPE_YARN && c->rope_theta <= 1)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: rope_scaling \"yarn\" needs a rope_theta above 1");
  WN_TRY(config_check_longrope(ctx, c));
  if (c->rope_scaling.type == WN_ROPE_DYNAMIC && R < 4)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: rope_scaling \"dynamic\" needs 4 elements that turn; there are %lld",
                   (long long)R);
  return WN_OK;
}

void wn_encoder_config(const wn_model_config *c, wn_model_config *out) {
  *out = *c;
  out->layers = c->encoder.layers;
  out->context = c->encoder.context;
  out->recurrence = 0;
  out->tied = true; /* an encoder has no output projection */
  wn_attention_config_init(&out->attention);
  out->attention.bidirectional = true;
  out->attention.scale = c->attention.scale;
  out->attention.dropout = c->attention.dropout;
  out->attention.buckets = c->attention.buckets;
  if (c->encoder.selective) out->attention.selective = c->attention.selective;
  out->attention.selective.enabled = c->encoder.selective;
  out->attention.selective.mem.enabled = false; /* L_mem is about what a decoder caches */
  out->encoder.layers = out->encoder.context = 0;
  out->encoder.selective = false;
  out->rope_local_theta = 0; /* no windows */
}

/* Checks what an encoder does not go with. */
static wn_status config_check_encoder(wn_context *ctx, const wn_model_config *c) {
  if (c->encoder.layers == 0 && c->encoder.context == 0 && !c->encoder.selective) return WN_OK;
  if (c->encoder.layers == 0 && c->encoder.selective)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: encoder.selective is true, but encoder.layers is 0");
  if (c->encoder.layers == 0)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: encoder.context is %lld, but encoder.layers is 0",
                   (long long)c->encoder.context);
  if (c->norm_place != WN_NORM_PRE)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: an encoder (encoder.layers) needs norm_place \"pre\"");
  if (c->recurrence > 0)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: an encoder (encoder.layers) and recurrence (memory) exclude each other");
  if (wn_attention_has_sinks(&c->attention))
    return wn_fail(ctx, WN_ERR_CONFIG, "model: an encoder (encoder.layers) and attention.%s exclude each other",
                   c->attention.sinks > 0 ? "sinks" : "off_by_one");
  if (c->position == WN_POS_LEARNED && c->encoder.context > c->context)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: encoder.context is %lld; learned positions reach to context, %lld",
                   (long long)c->encoder.context, (long long)c->context);
  wn_model_config encoder;
  wn_encoder_config(c, &encoder);
  const struct wn_attention_shape shape = {.heads = c->heads, .kv_heads = c->kv_heads, .head_size = c->head_size};
  return wn_attention_config_check(ctx, "model.encoder: attention", &encoder.attention, &shape);
}

/* Checks what experts need and what they do not go with. */
static wn_status config_check_experts(wn_context *ctx, const wn_model_config *c) {
  const int64_t E = c->experts.count, active = c->experts.active;
  if (E == 0) {
    const bool any =
        active || c->experts.normalize || c->experts.shared_width || c->experts.shared_gate || c->experts.balance > 0;
    if (!any) return WN_OK;
    return wn_fail(ctx, WN_ERR_CONFIG, "model: experts.count is 0, but another key of experts is set");
  }
  if (active < 1 || active > E)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: experts.active is %lld, expected 1 to experts.count, %lld",
                   (long long)active, (long long)E);
  if (c->experts.shared_gate && c->experts.shared_width == 0)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: experts.shared_gate needs experts.shared_width");
  const char *against = c->ffn != WN_FFN_SWIGLU         ? "an ffn other than \"swiglu\""
                        : c->bias                       ? "bias"
                        : c->norm_place == WN_NORM_POST ? "norm_place \"post\""
                        : c->encoder.layers > 0         ? "an encoder (encoder.layers)"
                        : c->dropout_hidden > 0         ? "dropout_hidden"
                                                        : NULL;
  if (!against) return WN_OK;
  return wn_fail(ctx, WN_ERR_CONFIG, "model: experts and %s exclude each other", against);
}

wn_status wn_model_config_resolve(wn_context *ctx, wn_model_config *config) {
  WN_CHECK_CALL(WN_POINTER(config));
  wn_model_config c = *config;
  WN_TRY(config_check_ranges(ctx, &c));
  if (c.vocab_size < 1) return wn_fail(ctx, WN_ERR_CONFIG, "model: vocab_size is 0; it must be at least 1");
  WN_TRY(wn_init_check(ctx, &c));
  if (c.context == 0) c.context = DEFAULT_CONTEXT;
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.heads % c.kv_heads != 0)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: heads is %lld, which is not a multiple of kv_heads (%lld)",
                   (long long)c.heads, (long long)c.kv_heads);
  if (c.head_size == 0) {
    if (c.width % c.heads != 0)
      return wn_fail(ctx, WN_ERR_CONFIG,
                     "model: width is %lld, which is not a multiple of heads (%lld); change one or set head_size",
                     (long long)c.width, (long long)c.heads);
    c.head_size = c.width / c.heads;
  }
  WN_TRY(config_check_rotary(ctx, &c));
  if (c.logit_softcap > 0 && c.logit_softcap < WN_SOFTCAP_LEAST)
    return wn_fail(ctx, WN_ERR_CONFIG, "model: logit_softcap is %g; expected 0 or at least %g", c.logit_softcap,
                   WN_SOFTCAP_LEAST);
  if (c.qk_norm_whole && !c.qk_norm) return wn_fail(ctx, WN_ERR_CONFIG, "model: qk_norm_whole needs qk_norm");
  if (c.attention.bidirectional)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "model: attention.bidirectional would let a decoder's rows see the tokens they predict");
  if (c.recurrence > 0) WN_TRY(wn_model_recurrence_check(ctx, "model", &c));
  if (c.encoder.layers > 0 && c.encoder.context == 0) c.encoder.context = c.context;
  WN_TRY(config_check_encoder(ctx, &c));
  WN_TRY(config_check_experts(ctx, &c));
  if (c.ffn_width == 0) c.ffn_width = wn_ffn_has_gate(&c) ? 8 * c.width / 3 : 4 * c.width;
  WN_TRY(config_check_ranges(ctx, &c)); /* also values that were filled in: config.json must be readable again */
  struct wn_attention_shape shape = {.heads = c.heads, .kv_heads = c.kv_heads, .head_size = c.head_size};
  WN_TRY(wn_attention_config_check(ctx, "model.attention", &c.attention, &shape));
  *config = c;
  return WN_OK;
}

wn_status wn_model_config_json(wn_context *ctx, const wn_model_config *config, char **out) {
  WN_CHECK_CALL(WN_POINTER(config), WN_POINTER(out));
  struct wn_field_group groups[WN_MODEL_FIELD_GROUPS_MAX];
  int count = wn_model_field_groups("", "attention", 0, groups);
  json_t *object;
  *out = NULL;
  WN_TRY(wn_fields_write(ctx, groups, count, config, &object));
  wn_status status = wn_json_text(ctx, object, out);
  json_decref(object);
  return status;
}

static wn_status config_read_object(wn_context *ctx, const char *where, const json_t *object, wn_model_config *out) {
  struct wn_field_group groups[WN_MODEL_FIELD_GROUPS_MAX];
  int count = wn_model_field_groups("", "attention", 0, groups);
  wn_model_config_init(out);
  WN_TRY(wn_fields_read(ctx, where, object, groups, count, out));
  wn_status status = wn_model_config_resolve(ctx, out);
  return status == WN_OK ? status : wn_fail_prefix(ctx, status, "%s", where);
}

wn_status wn_model_config_parse(wn_context *ctx, const char *where, const char *text, size_t bytes,
                                wn_model_config *out) {
  json_t *object;
  WN_TRY(wn_json_load_text(ctx, WN_JSON_CONFIG, where, text, bytes, &object));
  wn_status status = config_read_object(ctx, where, object, out);
  json_decref(object);
  return status;
}

wn_status wn_model_config_load(wn_context *ctx, const char *path, wn_model_config *out) {
  json_t *object;
  WN_TRY(wn_json_load_file(ctx, WN_JSON_CONFIG, path, &object));
  wn_status status = config_read_object(ctx, path, object, out);
  json_decref(object);
  return status;
}

wn_status wn_model_config_save(wn_context *ctx, const char *path, const wn_model_config *config) {
  char *text;
  WN_TRY(wn_model_config_json(ctx, config, &text));
  wn_status status = wn_file_write(ctx, path, text, strlen(text));
  wn_free(text);
  return status;
}
