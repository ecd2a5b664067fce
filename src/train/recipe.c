/* Recipes: the "model", "data" and "train" objects of one JSON file. The same tables of keys serve to read, check,
 * write and explain them. Single keys can be changed by "section.key=value", applied to the JSON before it is read. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/misuse.h"
#include "data/config.h"
#include "kv/policy.h"
#include "model/config.h"
#include "train/recipe.h"

#define AT(member) offsetof(wn_train_config, member)
#define MAX_TOKENS_PER_STEP ((int64_t)1 << 36)

static const char *const optimizer_names[] = {"adamw", "adagrad", "muon", NULL};
const char *const wn_tune_names[] = {"all", "attention", "lora", "mechanisms", NULL};
static const char *const schedule_names[] = {"cosine", "linear", "constant", NULL};
static const char *const activation_names[] = {[WN_F32] = "float32", [WN_F64] = "", [WN_BF16] = "bfloat16", NULL};

static const struct wn_field train_fields[] = {
    {"steps", WN_FIELD_INT64, AT(steps), 1, 1e12, NULL, "optimizer steps"},
    {"batch", WN_FIELD_INT64, AT(batch), 1, 1 << 20, NULL, "sequences per micro-step"},
    {"accumulate", WN_FIELD_INT64, AT(accumulate), 1, 1 << 20, NULL, "micro-steps per optimizer step"},
    {"context", WN_FIELD_INT64, AT(context), 0, 1 << 24, NULL, "tokens per sequence; 0: the model's context"},
    {"shards", WN_FIELD_INT64, AT(shards), 0, 1 << 20, NULL,
     "parts of a step's rows, summed in a fixed tree: up to so many processes, with the same bits; 0: the processes"},
    {"optimizer", WN_FIELD_ENUM, AT(optimizer), 0, 0, optimizer_names, "update rule"},
    {"lr", WN_FIELD_DOUBLE, AT(lr), 0, 1000, NULL, "learning rate after the warm-up"},
    {"min_lr_ratio", WN_FIELD_DOUBLE, AT(min_lr_ratio), 0, 1, NULL, "cosine and linear end at lr times this"},
    {"warmup", WN_FIELD_INT64, AT(warmup), 0, 1e12, NULL, "steps of linear warm-up from 0"},
    {"schedule", WN_FIELD_ENUM, AT(schedule), 0, 0, schedule_names, "decay after the warm-up"},
    {"schedule_from", WN_FIELD_INT64, AT(schedule_from), 0, 1e12, NULL,
     "warm-up and decay begin after this step: for continuing a run"},
    {"beta1", WN_FIELD_DOUBLE, AT(beta1), 0, 0.999999, NULL, "adamw, muon: decay of the first moment"},
    {"beta2", WN_FIELD_DOUBLE, AT(beta2), 0, 0.99999999, NULL, "adamw, muon: decay of the second moment"},
    {"eps", WN_FIELD_DOUBLE, AT(eps), 1e-30, 1, NULL, "added to the update's denominator"},
    {"weight_decay", WN_FIELD_DOUBLE, AT(weight_decay), 0, 1000, NULL,
     "decoupled, of every optimizer; tensors of two dimensions"},
    {"muon.lr", WN_FIELD_DOUBLE, AT(muon.lr), 0, 1000, NULL,
     "muon: rate of the layers' projections, with the schedule of lr, which is that of all other tensors"},
    {"muon.momentum", WN_FIELD_DOUBLE, AT(muon.momentum), 0, 0.999999, NULL, "muon: decay of the momentum"},
    {"muon.nesterov", WN_FIELD_BOOL, AT(muon.nesterov), 0, 0, NULL, "muon: the momentum looks ahead"},
    {"muon.steps", WN_FIELD_INT64, AT(muon.steps), 1, 100, NULL, "muon: Newton-Schulz iterations"},
    {"clip", WN_FIELD_DOUBLE, AT(clip), 0, 1e12, NULL, "largest norm of the whole gradient; 0: off"},
    {"clip_tensor", WN_FIELD_DOUBLE, AT(clip_tensor), 0, 1e12, NULL,
     "largest norm of each module's gradient, which adagrad's sum takes unclipped; 0: off"},
    {"seed", WN_FIELD_UINT64, AT(seed), 0, 18446744073709551615.0, NULL, "seed of parameters, data order and dropout"},
    {"eval_every", WN_FIELD_INT64, AT(eval_every), 0, 1e12, NULL, "steps between evaluations; 0: never"},
    {"eval_batches", WN_FIELD_INT64, AT(eval_batches), 0, 1e12, NULL, "batches per evaluation; 0: the whole val split"},
    {"save_every", WN_FIELD_INT64, AT(save_every), 0, 1e12, NULL, "steps between checkpoints; 0: at the end only"},
    {"log_every", WN_FIELD_INT64, AT(log_every), 1, 1e12, NULL, "steps between lines of log.jsonl"},
    {"recompute", WN_FIELD_BOOL, AT(recompute), 0, 0, NULL, "a layer's activations are recomputed in backward"},
    {"whole_memory", WN_FIELD_BOOL, AT(whole_recurrence), 0, 0, NULL,
     "recurrence caches and reads all tokens, also those that no head can see: for comparison"},
    {"activation_dtype", WN_FIELD_ENUM, AT(activation_dtype), 0, 0, activation_names,
     "storage of activations kept for the backward pass"},
    {"precision", WN_FIELD_ENUM, AT(precision), 0, 0, activation_names,
     "bfloat16: products of numbers rounded to it; sums, parameters and the optimizer stay float32"},
    {"init", WN_FIELD_STRING, AT(init), 0, 1024, NULL, "a checkpoint whose parameters a new run starts with"},
    {"adapt", WN_FIELD_BOOL, AT(adapt), 0, 0, NULL,
     "init's model lacks mechanisms of this one, which start without effect"},
    {"select_from_head", WN_FIELD_BOOL, AT(select_from_head), 0, 0, NULL,
     "adapt: projections of the bilinear form start as the selecting head's, else at random"},
    {"tune", WN_FIELD_ENUM, AT(tune), 0, 0, wn_tune_names, "which parameters learn"},
    {"freeze", WN_FIELD_STRING, AT(freeze), 0, 512, NULL,
     "tensors that do not learn: names with *, separated by commas"},
    {"lora.rank", WN_FIELD_INT64, AT(lora.rank), 1, 4096, NULL, "tune lora: rank of the updates"},
    {"lora.alpha", WN_FIELD_DOUBLE, AT(lora.alpha), 0, 1e6, NULL, "tune lora: updates are scaled by alpha / rank"},
    {"lr_mechanisms", WN_FIELD_DOUBLE, AT(lr_mechanisms), 0, 1e6, NULL,
     "factor of lr for the attention mechanisms' own parameters"},
    {"strength_steps", WN_FIELD_INT64, AT(strength_steps), 0, 1e12, NULL,
     "steps in which a scheduled strength rises to 1; 0: half of the run"},
    {"prune.budgets", WN_FIELD_STRING, AT(prune.budgets), 1, 1024, NULL,
     "tokens that a layer holds in training, as for --budgets; empty: all"},
    {"prune.policy", WN_FIELD_ENUM, AT(prune.policy), 0, 0, wn_policy_names, "which token is evicted"},
    {"prune.from_step", WN_FIELD_INT64, AT(prune.from_step), 0, 1e12, NULL,
     "last step without budgets; from there they fall from the context"},
    {"prune.to_step", WN_FIELD_INT64, AT(prune.to_step), 0, 1e12, NULL, "first step with the final budgets"},
    {"prune.draw", WN_FIELD_BOOL, AT(prune.draw), 0, 0, NULL,
     "each step draws its budgets between these and the context, log-uniformly"},
    {"mem.from_step", WN_FIELD_INT64, AT(mem.from_step), 0, 1e12, NULL,
     "last step without L_mem (selective.mem); from there its weight rises to eps"},
    {"mem.to_step", WN_FIELD_INT64, AT(mem.to_step), 0, 1e12, NULL,
     "first step with the whole weight of L_mem; from_step or 0: the one after from_step"},
};

int wn_recipe_groups(struct wn_field_group *out) {
  int n = wn_model_field_groups("model", "model.attention", offsetof(wn_recipe, model), out);
  out[n++] = (struct wn_field_group){"data", wn_data_fields, wn_data_field_count, offsetof(wn_recipe, data), false};
  out[n++] = (struct wn_field_group){"train", train_fields, (int)(sizeof train_fields / sizeof *train_fields),
                                     offsetof(wn_recipe, train), false};
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
