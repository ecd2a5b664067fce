/* Recipes: the "model", "data" and "train" objects of one JSON file. The same tables of keys serve to read, check,
 * write and explain them. Single keys can be changed by "section.key=value", applied to the JSON before it is read. */
#include <stdio.h>
#include <string.h>

#include "base/misuse.h"
#include "data/config.h"
#include "kv/policy.h"
#include "train/recipe.h"

#define AT(member) offsetof(wn_train_config, member)
#define MAX_TOKENS_PER_STEP ((int64_t)1 << 36)

static const char *const optimizer_names[] = {"adamw", "adagrad", "muon", NULL};
const char *const wn_tune_names[] = {"all", "attention", "lora", "mechanisms", NULL};
static const char *const schedule_names[] = {"cosine", "linear", "constant", NULL};
static const char *const activation_names[] = {[WN_F32] = "float32", [WN_F64] = "", [WN_BF16] = "bfloat16", NULL};

static const struct wn_field train_fields[] = {
    WN_KEY("steps", INT64, AT(steps), "optimizer steps", .min = 1, .max = 1e12),
    WN_KEY("batch", INT64, AT(batch), "sequences per micro-step", .min = 1, .max = 1 << 20),
    WN_KEY("accumulate", INT64, AT(accumulate), "micro-steps per optimizer step", .min = 1, .max = 1 << 20),
    WN_KEY("context", INT64, AT(context), "tokens per sequence; 0: the model's context", .min = 0, .max = 1 << 24),
    WN_KEY("shards", INT64, AT(shards),
           "parts of a step's sequences, summed in a fixed tree: up to so many processes, with the same bits; 0: the "
           "processes",
           .min = 0, .max = 1 << 20),
    WN_KEY("optimizer", ENUM, AT(optimizer), "update rule", .names = optimizer_names),
    WN_KEY("lr", DOUBLE, AT(lr), "learning rate after the warm-up", .min = 0, .max = 1000),
    WN_KEY("min_lr_ratio", DOUBLE, AT(min_lr_ratio), "cosine and linear end at lr times this", .min = 0, .max = 1),
    WN_KEY("warmup", INT64, AT(warmup), "steps of linear warm-up from 0", .min = 0, .max = 1e12),
    WN_KEY("schedule", ENUM, AT(schedule), "decay after the warm-up", .names = schedule_names),
    WN_KEY("schedule_from", INT64, AT(schedule_from), "warm-up and decay begin after this step: for continuing a run",
           .min = 0, .max = 1e12),
    WN_KEY("beta1", DOUBLE, AT(beta1), "adamw, muon: decay of the first moment", .min = 0, .max = 0.999999),
    WN_KEY("beta2", DOUBLE, AT(beta2), "adamw, muon: decay of the second moment", .min = 0, .max = 0.99999999),
    WN_KEY("eps", DOUBLE, AT(eps), "added to the update's denominator", .min = 1e-30, .max = 1),
    WN_KEY("weight_decay", DOUBLE, AT(weight_decay), "decoupled, of every optimizer; tensors of two dimensions",
           .min = 0, .max = 1000),
    WN_KEY("muon.lr", DOUBLE, AT(muon.lr),
           "muon: rate of the layers' projections, with the schedule of lr, which is that of all other tensors",
           .min = 0, .max = 1000),
    WN_KEY("muon.momentum", DOUBLE, AT(muon.momentum), "muon: decay of the momentum", .min = 0, .max = 0.999999),
    WN_KEY("muon.nesterov", BOOL, AT(muon.nesterov), "muon: the momentum looks ahead"),
    WN_KEY("muon.steps", INT64, AT(muon.steps), "muon: Newton-Schulz iterations", .min = 1, .max = 100),
    WN_KEY("clip", DOUBLE, AT(clip), "largest norm of the whole gradient; 0: off", .min = 0, .max = 1e12),
    WN_KEY("clip_tensor", DOUBLE, AT(clip_tensor),
           "largest norm of each module's gradient, which adagrad's sum takes unclipped; 0: off", .min = 0,
           .max = 1e12),
    WN_KEY("seed", UINT64, AT(seed), "seed of parameters, data order and dropout", .min = 0,
           .max = 18446744073709551615.0),
    WN_KEY("eval_every", INT64, AT(eval_every), "steps between evaluations; 0: never", .min = 0, .max = 1e12),
    WN_KEY("eval_batches", INT64, AT(eval_batches), "batches per evaluation; 0: the whole val split", .min = 0,
           .max = 1e12),
    WN_KEY("save_every", INT64, AT(save_every), "steps between checkpoints; 0: at the end only", .min = 0, .max = 1e12),
    WN_KEY("log_every", INT64, AT(log_every), "steps between lines of log.jsonl", .min = 1, .max = 1e12),
    WN_KEY("recompute", BOOL, AT(recompute), "a layer's activations are recomputed in backward"),
    WN_KEY("whole_memory", BOOL, AT(whole_recurrence),
           "recurrence caches and reads all tokens, also those that no head can see: for comparison"),
    WN_KEY("activation_dtype", ENUM, AT(activation_dtype), "storage of activations kept for the backward pass",
           .names = activation_names),
    WN_KEY("precision", ENUM, AT(precision),
           "bfloat16: products of numbers rounded to it; sums, parameters and the optimizer stay float32",
           .names = activation_names),
    WN_KEY("init", STRING, AT(init), "a checkpoint whose parameters a new run starts with", .min = 0, .max = 1024),
    WN_KEY("adapt", BOOL, AT(adapt), "init's model lacks mechanisms of this one, which start without effect"),
    WN_KEY("select_from_head", BOOL, AT(select_from_head),
           "adapt: projections of the bilinear form start as the selecting head's, else at random"),
    WN_KEY("tune", ENUM, AT(tune), "which parameters learn", .names = wn_tune_names),
    WN_KEY("freeze", STRING, AT(freeze), "tensors that do not learn: names with *, separated by commas", .min = 0,
           .max = 512),
    WN_KEY("lora.rank", INT64, AT(lora.rank), "tune lora: rank of the updates", .min = 1, .max = 4096),
    WN_KEY("lora.alpha", DOUBLE, AT(lora.alpha), "tune lora: updates are scaled by alpha / rank", .min = 0, .max = 1e6),
    WN_KEY("lr_mechanisms", DOUBLE, AT(lr_mechanisms), "factor of lr for the attention mechanisms' own parameters",
           .min = 0, .max = 1e6),
    WN_KEY("strength_steps", INT64, AT(strength_steps),
           "steps in which a scheduled strength rises to 1 and adapted gates begin to act; 0: half of the run",
           .min = 0, .max = 1e12),
    WN_KEY("prune.budgets", STRING, AT(prune.budgets),
           "tokens that a layer holds in training, as for --budgets; empty: all", .min = 1, .max = 1024),
    WN_KEY("prune.policy", ENUM, AT(prune.policy), "which token is evicted", .names = wn_policy_names),
    WN_KEY("prune.from_step", INT64, AT(prune.from_step),
           "last step without budgets; from there they fall from the context", .min = 0, .max = 1e12),
    WN_KEY("prune.to_step", INT64, AT(prune.to_step), "first step with the final budgets", .min = 0, .max = 1e12),
    WN_KEY("prune.draw", BOOL, AT(prune.draw),
           "each step draws its budgets between these and the context, log-uniformly"),
    WN_KEY("mem.from_step", INT64, AT(mem.from_step),
           "last step without L_mem (selective.mem) and the losses of gates; from there their coefficients rise",
           .min = 0, .max = 1e12),
    WN_KEY("mem.to_step", INT64, AT(mem.to_step),
           "first step with the whole coefficients; from_step or 0: the one after from_step", .min = 0, .max = 1e12),
};

int wn_recipe_groups(struct wn_field_group *out) {
  int n = wn_model_field_groups("model", "model.attention", offsetof(wn_recipe, model), out);
  out[n++] = (struct wn_field_group){
      .prefix = "data", .fields = wn_data_fields, .count = wn_data_field_count, .base = offsetof(wn_recipe, data)};
  out[n++] = (struct wn_field_group){.prefix = "train",
                                     .fields = train_fields,
                                     .count = (int)(sizeof train_fields / sizeof *train_fields),
                                     .base = offsetof(wn_recipe, train)};
  return n;
}

void wn_recipe_init(wn_recipe *recipe) {
  WN_CHECK_OR(, WN_POINTER(recipe));
  memset(recipe, 0, sizeof *recipe);
  wn_model_config_init(&recipe->model);
  wn_data_config_init(&recipe->data);
  recipe->train = (wn_train_config){
      .steps = 1000,
      .batch = 16,
      .accumulate = 1,
      .optimizer = WN_OPT_ADAMW,
      .lr = 1e-3,
      .min_lr_ratio = 0.1,
      .warmup = 100,
      .schedule = WN_SCHED_COSINE,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .eps = 1e-8,
      .weight_decay = 0.1,
      .muon = {.lr = 0.02, .momentum = 0.95, .nesterov = true, .steps = 5},
      .clip = 1,
      .seed = 1,
      .eval_every = 250,
      .eval_batches = 20,
      .save_every = 500,
      .log_every = 1,
      .activation_dtype = WN_F32,
      .precision = WN_F32,
      .select_from_head = true,
      .lora = {.rank = 8, .alpha = 16},
      .lr_mechanisms = 1,
  };
}

/* An encoder reads what span corruption leaves of a text, so each needs the other, and their lengths must agree. */
static wn_status resolve_encoder(wn_context *ctx, const char *where, wn_recipe *r) {
  const bool encoder = r->model.encoder.layers > 0, spans = r->data.kind == WN_DATA_SPAN_CORRUPTION;
  if (encoder != spans)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"model.encoder.layers\" is %lld; %s", where,
                   (long long)r->model.encoder.layers,
                   spans ? "\"data.kind\" \"span_corruption\" needs an encoder"
                         : "an encoder needs \"data.kind\" \"span_corruption\"");
  if (!spans) return WN_OK;
  if (r->model.encoder.context == 0) r->model.encoder.context = r->data.input_length > 0 ? r->data.input_length : 512;
  if (r->data.input_length == 0) r->data.input_length = r->model.encoder.context;
  if (r->data.input_length > r->model.encoder.context)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "%s: \"data.input_length\" is %lld; it must be at most %lld, "
                   "\"model.encoder.context\"",
                   where, (long long)r->data.input_length, (long long)r->model.encoder.context);
  return WN_OK;
}

/* Fills in values that the data decides and checks dependencies between keys. The vocabulary of a token file is not
 * known here: it may stay 0 until the data is opened, and the model is checked with a placeholder. */
static wn_status resolve(wn_context *ctx, const char *where, wn_recipe *r) {
  WN_TRY(resolve_encoder(ctx, where, r));
  WN_TRY(wn_data_config_check(ctx, where, &r->data));
  int64_t vocab, context;
  wn_data_config_requirements(&r->data, &vocab, &context);
  if (r->model.vocab_size == 0) r->model.vocab_size = vocab;
  if (r->model.context == 0) r->model.context = context;
  wn_model_config model = r->model;
  bool unknown = model.vocab_size == 0;
  if (unknown) model.vocab_size = 1;
  wn_status status = wn_model_config_resolve(ctx, &model);
  if (status != WN_OK) return wn_fail_prefix(ctx, status, "%s", where);
  if (unknown) model.vocab_size = 0;
  r->model = model;

  if (vocab > r->model.vocab_size)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"model.vocab_size\" is %lld; the task in \"data\" needs at least %lld",
                   where, (long long)r->model.vocab_size, (long long)vocab);
  if (!unknown && r->data.document_token >= r->model.vocab_size)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"data.document_token\" is %d; \"model.vocab_size\" is %lld", where,
                   r->data.document_token, (long long)r->model.vocab_size);
  if (r->model.recurrence > 0 && !r->data.stream)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "%s: \"model.memory\" is %lld; it needs \"data.stream\", rows that continue where they stopped",
                   where, (long long)r->model.recurrence);
  wn_train_config *t = &r->train;
  if (t->context == 0) t->context = context ? context : r->model.context;
  if (context > r->model.context)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"model.context\" is %lld; the task in \"data\" needs at least %lld", where,
                   (long long)r->model.context, (long long)context);
  if (t->context > r->model.context)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"train.context\" is %lld; it must be at most \"model.context\" (%lld)",
                   where, (long long)t->context, (long long)r->model.context);
  if (t->context < context)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"train.context\" is %lld; the task in \"data\" needs at least %lld", where,
                   (long long)t->context, (long long)context);
  if (t->adapt && !t->init[0])
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"train.adapt\" needs \"train.init\", the model that is adapted", where);
  if (t->prune.to_step < t->prune.from_step)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"train.prune.to_step\" is %lld; it must not be before from_step (%lld)",
                   where, (long long)t->prune.to_step, (long long)t->prune.from_step);
  if (t->mem.to_step && t->mem.to_step < t->mem.from_step)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"train.mem.to_step\" is %lld; it must not be before from_step (%lld)",
                   where, (long long)t->mem.to_step, (long long)t->mem.from_step);
  if (t->prune.budgets[0] && r->model.recurrence > 0)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"train.prune.budgets\" and \"model.memory\" exclude each other", where);
  int64_t tokens;
  if (__builtin_mul_overflow(t->batch, t->accumulate, &tokens) || __builtin_mul_overflow(tokens, t->context, &tokens) ||
      tokens > MAX_TOKENS_PER_STEP)
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "%s: \"train.batch\" * \"train.accumulate\" * \"train.context\" is %lld * %lld * %lld tokens per step; "
        "at most %lld are possible",
        where, (long long)t->batch, (long long)t->accumulate, (long long)t->context, (long long)MAX_TOKENS_PER_STEP);
  return WN_OK;
}

/* Reads each assignment by itself first, so that an error names the assignment and not the file. */
static wn_status apply_set(wn_context *ctx, json_t *object, const char *set) {
  struct wn_field_group groups[WN_RECIPE_GROUPS_MAX];
  int count = wn_recipe_groups(groups);
  char where[160];
  snprintf(where, sizeof where, "set %.120s", set);
  json_t *alone = json_object();
  if (!alone) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", where);
  wn_recipe scratch;
  wn_recipe_init(&scratch);
  wn_status status = wn_fields_set(ctx, alone, groups, count, set);
  if (status == WN_OK) status = wn_fields_read(ctx, where, alone, groups, count, &scratch);
  json_decref(alone);
  return status == WN_OK ? wn_fields_set(ctx, object, groups, count, set) : status;
}

wn_status wn_recipe_check_json(wn_context *ctx, const char *where, json_t *object) {
  struct wn_field_group groups[WN_RECIPE_GROUPS_MAX];
  int count = wn_recipe_groups(groups);
  wn_recipe scratch;
  wn_recipe_init(&scratch);
  return wn_fields_read(ctx, where, object, groups, count, &scratch);
}

wn_status wn_recipe_read(wn_context *ctx, const char *where, json_t *object, const char *const *sets, int set_count,
                         wn_recipe *out) {
  struct wn_field_group groups[WN_RECIPE_GROUPS_MAX];
  int count = wn_recipe_groups(groups);
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  WN_TRY(wn_fields_read(ctx, where, object, groups, count, &recipe)); /* report mistakes in the file first */
  for (int i = 0; i < set_count; i++) {
    if (!sets[i]) return wn_fail(ctx, WN_ERR_ARGUMENT, "wn_recipe_load: set %d of %d is NULL", i, set_count);
    WN_TRY(apply_set(ctx, object, sets[i]));
  }
  wn_recipe_init(&recipe);
  WN_TRY(wn_fields_read(ctx, where, object, groups, count, &recipe));
  char changed[4096 + 16]; /* the message names the sets too: they may be what does not fit */
  snprintf(changed, sizeof changed, set_count > 0 ? "%s, as changed" : "%s", where);
  WN_TRY(resolve(ctx, changed, &recipe));
  *out = recipe;
  return WN_OK;
}

wn_status wn_recipe_load(wn_context *ctx, const char *path, const char *const *sets, int set_count, wn_recipe *out) {
  WN_CHECK_CALL(WN_ARRAY(sets, set_count), WN_POINTER(out));
  json_t *object;
  if (path)
    WN_TRY(wn_json_load_input(ctx, WN_JSON_CONFIG, path, &object));
  else if (!(object = json_object()))
    return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a recipe");
  wn_status status = wn_recipe_read(ctx, path ? path : "recipe", object, sets, set_count, out);
  json_decref(object);
  return status;
}

wn_status wn_recipe_parse(wn_context *ctx, const char *text, size_t bytes, const char *const *sets, int set_count,
                          wn_recipe *out) {
  WN_CHECK_CALL(WN_ARRAY(text, bytes), WN_ARRAY(sets, set_count), WN_POINTER(out));
  json_t *object;
  WN_TRY(wn_json_load_text(ctx, WN_JSON_CONFIG, "recipe", text, bytes, &object));
  const wn_status status = wn_recipe_read(ctx, "recipe", object, sets, set_count, out);
  json_decref(object);
  return status;
}

wn_status wn_recipe_help(wn_context *ctx, char **out) {
  WN_CHECK_CALL(WN_POINTER(out));
  struct wn_field_group groups[WN_RECIPE_GROUPS_MAX];
  int count = wn_recipe_groups(groups);
  wn_recipe defaults;
  wn_recipe_init(&defaults);
  *out = NULL;
  return wn_fields_help(ctx, groups, count, &defaults, out);
}

wn_status wn_recipe_json(wn_context *ctx, const wn_recipe *recipe, char **out) {
  WN_CHECK_CALL(WN_POINTER(recipe), WN_POINTER(out));
  struct wn_field_group groups[WN_RECIPE_GROUPS_MAX];
  int count = wn_recipe_groups(groups);
  json_t *object;
  *out = NULL;
  WN_TRY(wn_fields_write(ctx, groups, count, recipe, &object));
  wn_status status = wn_json_text(ctx, object, out);
  json_decref(object);
  return status;
}
