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
#include "base/options.h"
#include "model/init.h"
#include "model/layer.h"
#include "ops/ops.h"

#define AT(member) offsetof(wn_model_config, member)
#define DEFAULT_CONTEXT 512

static const char *const norm_names[] = {"rmsnorm", "layernorm", NULL};
static const char *const place_names[] = {"pre", "post", "both", "branch", NULL};
static const char *const position_names[] = {"none", "learned", "rope", NULL};
static const char *const pairs_names[] = {"halves", "adjacent", NULL};
static const char *const scaling_names[] = {"none", "linear", "dynamic", "llama3", "yarn", "longrope", NULL};
static const char *const ffn_names[] = {"swiglu", "gelu", "relu", "gelu_erf", "geglu", "relu2", NULL};

static const struct wn_field fields[] = {
    WN_KEY("vocab_size", INT64, AT(vocab_size), "0: the data's", .min = 0, .max = WN_LIMIT_VOCABULARY),
    WN_KEY("context", INT64, AT(context), "longest sequence; 0: the task's, or 512", .min = 0, .max = 1 << 24),
    WN_KEY("layers", INT64, AT(layers), "layers of the decoder", .min = 1, .max = 4096),
    WN_KEY("width", INT64, AT(width), "size of the residual stream", .min = 1, .max = 1 << 18),
    WN_KEY("heads", INT64, AT(heads), "query heads", .min = 1, .max = 4096),
    WN_KEY("kv_heads", INT64, AT(kv_heads), "key-value heads; 0: heads", .min = 0, .max = 4096),
    WN_KEY("head_size", INT64, AT(head_size), "0: width/heads", .min = 0, .max = 4096),
    WN_KEY("ffn_width", INT64, AT(ffn_width),
           "inner size of the feed-forward; 0: floor(8*width/3) with a gate, else 4*width", .min = 0, .max = 1 << 20),
    WN_KEY("norm", ENUM, AT(norm), "kind of the norms before attention, feed-forward and output", .names = norm_names),
    WN_KEY("norm_place", ENUM, AT(norm_place),
           "norms before attention and feed-forward, after the residual additions, before and on each branch's "
           "output, or on "
           "that output alone",
           .names = place_names),
    WN_KEY("embed_norm", BOOL, AT(embed_norm), "a norm after the embedding"),
    WN_KEY("norm_eps", DOUBLE, AT(norm_eps), "added under the square root", .min = 1e-12, .max = 1),
    WN_KEY("embed_scale", EXTRA, AT(embed_scale), "factor on the token embedding; 0: 1", .min = 0, .max = 1e6),
    WN_KEY("residual_scale", EXTRA, AT(residual_scale), "factor on what each branch adds to the residual stream; 0: 1",
           .min = 0, .max = 1e6),
    WN_KEY("logit_divisor", EXTRA, AT(logit_divisor), "logits are divided by it; 0: 1", .min = 0, .max = 1e6),
    WN_KEY("logit_softcap", EXTRA, AT(logit_softcap), "logits are cap*tanh(logit/cap); 0: off", .min = 0, .max = 1e6),
    WN_KEY("position", ENUM, AT(position), "how positions enter the model", .names = position_names),
    WN_KEY("rope_theta", DOUBLE, AT(rope_theta), "base of the rotary angles", .min = 1, .max = 1e12),
    WN_KEY("rope_local_theta", EXTRA, AT(rope_local_theta),
           "base of the rotary angles in layers with attention.window, unscaled; 0: rope_theta", .min = 0, .max = 1e12),
    WN_KEY("rope_pairs", ENUM, AT(rope_pairs), "elements that rotate together: (i, i+R/2), or (2i, 2i+1)",
           .names = pairs_names),
    WN_KEY("rope_size", INT64, AT(rope_size), "R: elements of each head that rotate; 0: all", .min = 0, .max = 4096),
    WN_KEY("rope_factors", BOOL, AT(rope_factors), "a tensor of divisors of the angles' frequencies"),
    WN_KEY("rope_scaling.type", ENUM, AT(rope_scaling.type),
           "scaling of angles beyond the context of the original training", .names = scaling_names),
    WN_KEY("rope_scaling.factor", DOUBLE, AT(rope_scaling.factor), "factor of the scaling", .min = 1e-3, .max = 1e6),
    WN_KEY("rope_scaling.context", INT64, AT(rope_scaling.context), "context of the original training; 0: context",
           .min = 0, .max = 1 << 24),
    WN_KEY("rope_scaling.low_freq_factor", DOUBLE, AT(rope_scaling.low_freq_factor),
           "llama3: frequencies with fewer turns than this within the context are divided by the factor", .min = 1e-6,
           .max = 1e6),
    WN_KEY("rope_scaling.high_freq_factor", DOUBLE, AT(rope_scaling.high_freq_factor),
           "llama3: frequencies with more turns than this are unchanged", .min = 1e-6, .max = 1e6),
    WN_KEY("rope_scaling.attention_factor", DOUBLE, AT(rope_scaling.attention_factor),
           "factor on cos and sin; 0: yarn 1 + 0.1 ln(factor), longrope sqrt(1 + ln(factor)/ln(context))", .min = 0,
           .max = 1e6),
    WN_KEY("rope_scaling.beta_fast", DOUBLE, AT(rope_scaling.beta_fast),
           "yarn: frequencies with more turns than this within the context are unchanged", .min = 1e-6, .max = 1e6),
    WN_KEY("rope_scaling.beta_slow", DOUBLE, AT(rope_scaling.beta_slow),
           "yarn: frequencies with fewer turns than this are divided by the factor", .min = 1e-6, .max = 1e6),
    WN_KEY("rope_scaling.truncate", BOOL, AT(rope_scaling.truncate), "yarn: round the two bounds to whole dimensions"),
    WN_KEY("ffn", ENUM, AT(ffn), "kind of the feed-forward", .names = ffn_names),
    WN_KEY("experts.count", EXTRA_INT64, AT(experts.count), "experts in place of each layer's feed-forward; 0: none",
           .min = 0, .max = WN_EXPERTS_MAX),
    WN_KEY("experts.active", EXTRA_INT64, AT(experts.active), "experts that each token takes", .min = 0,
           .max = WN_EXPERTS_TOP),
    WN_KEY("experts.normalize", EXTRA_BOOL, AT(experts.normalize), "a token's weights of its experts add up to 1"),
    WN_KEY("experts.shared_width", EXTRA_INT64, AT(experts.shared_width),
           "inner size of one more expert, which every token takes; 0: none", .min = 0, .max = 1 << 20),
    WN_KEY("experts.shared_gate", EXTRA_BOOL, AT(experts.shared_gate), "a learned gate on the shared expert"),
    WN_KEY("experts.balance", EXTRA, AT(experts.balance),
           "training: factor of the loss that evens out the experts' load", .min = 0, .max = 100),
    WN_KEY("qk_norm", BOOL, AT(qk_norm), "a norm on each head of q and k"),
    WN_KEY("qk_norm_whole", EXTRA_BOOL, AT(qk_norm_whole), "the norm of q and k is over all heads together"),
    WN_KEY("bias", BOOL, AT(bias), "biases on every projection and LayerNorm"),
    WN_KEY("qkv_bias", BOOL, AT(qkv_bias), "biases on the projections q, k and v, independent of bias"),
    WN_KEY("out_bias", EXTRA_BOOL, AT(out_bias), "a bias on attention's output projection, independent of bias"),
    WN_KEY("tied", BOOL, AT(tied), "the output shares the embedding"),
    WN_KEY("dropout", DOUBLE, AT(dropout), "after the embedding and on both residual branches", .min = 0, .max = 0.999),
    WN_KEY("dropout_hidden", DOUBLE, AT(dropout_hidden), "on the feed-forward's inner activations", .min = 0,
           .max = 0.999),
    WN_KEY("memory", INT64, AT(recurrence),
           "segment recurrence: tokens of earlier blocks that every layer caches; 0: none", .min = 0, .max = 1 << 24),
    WN_KEY("encoder.layers", INT64, AT(encoder.layers),
           "layers of an encoder that the decoder attends to; 0: no encoder", .min = 0, .max = 4096),
    WN_KEY("encoder.context", INT64, AT(encoder.context), "longest input; 0: context", .min = 0, .max = 1 << 24),
    WN_KEY("encoder.selective", EXTRA_BOOL, AT(encoder.selective),
           "selective attention in the encoder, with the other keys of attention.selective"),
    WN_KEY("init_std", DOUBLE, AT(init_std), "standard deviation of the initial weights", .min = 0, .max = 10),
    WN_KEY("init.embeddings", EXTRA_STRING, AT(init.embeddings),
           "start of the token embedding: \"normal S\" or \"uniform S\", S a number, 1/sqrt(fan_in), of width or of "
           "head_size",
           .min = 0, .max = WN_INIT_BYTES),
    WN_KEY("init.positions", EXTRA_STRING, AT(init.positions),
           "start of learned positions and of relative position vectors", .min = 0, .max = WN_INIT_BYTES),
    WN_KEY("init.q", EXTRA_STRING, AT(init.q), "start of the projections to queries", .min = 0, .max = WN_INIT_BYTES),
    WN_KEY("init.k", EXTRA_STRING, AT(init.k), "start of the projections to keys", .min = 0, .max = WN_INIT_BYTES),
    WN_KEY("init.v", EXTRA_STRING, AT(init.v), "start of the projections to values", .min = 0, .max = WN_INIT_BYTES),
    WN_KEY("init.output", EXTRA_STRING, AT(init.output), "start of the attention's output projections", .min = 0,
           .max = WN_INIT_BYTES),
    WN_KEY("init.ffn_in", EXTRA_STRING, AT(init.ffn_in), "start of the feed-forward's first projections", .min = 0,
           .max = WN_INIT_BYTES),
    WN_KEY("init.ffn_out", EXTRA_STRING, AT(init.ffn_out), "start of the feed-forward's second projections", .min = 0,
           .max = WN_INIT_BYTES),
    WN_KEY("init.logits", EXTRA_STRING, AT(init.logits), "start of the projection to logits, where it is not tied",
           .min = 0, .max = WN_INIT_BYTES),
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
  for (enum wn_gates_have what = WN_GATES_LOSS; what <= WN_GATES_HIDDEN; what++) {
    const char *gates = wn_model_gates_with(c, what);
    if (gates)
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: recurrence (memory) and attention.%s.%s exclude each other", where, gates,
                     (const char *[]){"loss", "noise", "hidden"}[what]);
  }
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
  WN_TRY(WN_RESERVED_CHECK(ctx, wn_model_config, config));
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
