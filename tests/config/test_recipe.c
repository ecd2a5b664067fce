/* Recipes: every key is read, written and explained; a recipe's JSON loads to the same recipe; rules that involve
 * several keys are checked; mistakes are reported with the file, the place and the nearest key. */
#include "support.h"

#include <glob.h>
#include <jansson.h>

#include "base/alloc.h"
#include "winnow/train.h"

static wn_context *ctx;
static char folder[512], path[600];

static wn_status load_sets(wn_recipe *out, int count, const char *const *sets) {
  return wn_recipe_load(ctx, NULL, sets, count, out);
}
#define SETS(...)                                                                                                      \
  (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]) {                                    \
    __VA_ARGS__                                                                                                        \
  }

static wn_status load_text(const char *text, wn_recipe *out) {
  put_file(path, text, strlen(text));
  return wn_recipe_load(ctx, path, NULL, 0, out);
}

/* For every key a value that is not its default and is compatible with the others. */
static const char *const other[] = {
    "model.vocab_size=300",
    "model.context=140",
    "model.layers=2",
    "model.width=48",
    "model.heads=4",
    "model.kv_heads=2",
    "model.head_size=16",
    "model.ffn_width=96",
    "model.norm=layernorm",
    "model.norm_place=post",
    "model.embed_norm=true",
    "model.norm_eps=1e-5",
    "model.embed_scale=6.5",
    "model.residual_scale=0.3",
    "model.logit_divisor=3",
    "model.logit_softcap=30",
    "model.position=rope",
    "model.rope_theta=500000.5",
    "model.rope_local_theta=10000.25",
    "model.rope_pairs=adjacent",
    "model.rope_size=8",
    "model.rope_factors=true",
    "model.rope_scaling.type=yarn",
    "model.rope_scaling.factor=4",
    "model.rope_scaling.context=35",
    "model.rope_scaling.low_freq_factor=0.5",
    "model.rope_scaling.high_freq_factor=8",
    "model.rope_scaling.attention_factor=1.25",
    "model.rope_scaling.beta_fast=16",
    "model.rope_scaling.beta_slow=2",
    "model.rope_scaling.truncate=false",
    "model.qkv_bias=true",
    "model.ffn=gelu",
    "model.qk_norm=true",
    "model.qk_norm_whole=true",
    "model.bias=true",
    "model.tied=true",
    "model.dropout=0.125",
    "model.dropout_hidden=0.375",
    "model.init_std=0.01",
    "model.init.embeddings=normal 1",
    "model.init.positions=normal 0.5",
    "model.init.q=uniform 1/sqrt(head_size)",
    "model.init.k=uniform 0.25",
    "model.init.v=uniform 1/sqrt(width)",
    "model.init.output=uniform 2/sqrt(fan_in)",
    "model.init.ffn_in=normal 0.03",
    "model.init.ffn_out=normal 0",
    "model.init.logits=uniform 1e-3",
    "model.attention.scale=0.3",
    "model.attention.selective.enabled=true",
    "model.attention.selective.head=1",
    "model.attention.selective.relu=false",
    "model.attention.selective.protect_first=false",
    "model.attention.selective.protect_self=false",
    "model.attention.selective.shift=false",
    "model.attention.selective.bilinear=true",
    "model.attention.selective.mem.enabled=true",
    "model.attention.selective.mem.eps=0.7",
    "model.attention.selective.mem.tau=2.5",
    "data.kind=variable_assignment",
    "data.train=a b.bin",
    "model.attention.dropout=0.25",
    "model.attention.selective.per_kv_head=true",
    "model.attention.selective.strength=learned",
    "model.attention.span.enabled=true",
    "model.attention.span.dynamic=true",
    "model.attention.span.exclude_self=true",
    "model.attention.span.limit=128",
    "model.attention.span.ramp=16",
    "model.attention.span.init=0.5",
    "model.attention.span.loss=1e-5",
    "model.attention.relative.enabled=true",
    "model.attention.relative.length=300",
    "model.attention.buckets.enabled=true",
    "model.attention.buckets.count=24",
    "model.attention.buckets.farthest=90",
    "model.attention.alibi.enabled=true",
    "model.attention.alibi.max_bias=6",
    "model.attention.forget.enabled=true",
    "model.attention.forget.per_query_head=true",
    "model.attention.write.enabled=true",
    "model.attention.write.window=9",
    "model.attention.write.loss=0.25",
    "model.attention.write.keep=0.125",
    "model.attention.write.temperature=0.25",
    "model.attention.write.noise=true",
    "model.attention.write.keys=true",
    "model.attention.write.hidden=24",
    "model.attention.write.floor=0.0625",
    "model.attention.write.training_only=true",
    "model.attention.softcap.cap=30",
    "model.attention.window=77",
    "model.attention.window_layers=\"10\"",
    "model.attention.strided=9",
    "model.attention.sqrt.enabled=true",
    "model.attention.sqrt.buffer=12",
    "model.attention.sqrt.density=1.5",
    "model.attention.sinks=2",
    "model.attention.exclusive.enabled=true",
    "model.attention.exclusive.gate=true",
    "model.attention.exclusive.gate_init=0.5",
    "model.attention.exclusive.layers=\"01\"",
    "model.attention.gate=elementwise",
    "model.attention.threshold.enabled=true",
    "model.attention.threshold.tau=0.5",
    "data.val=v.bin",
    "data.tokenizer=bytes",
    "data.document_token=7",
    "data.variables=5",
    "data.values=200",
    "data.assignments=65",
    "data.eval_values=2",
    "data.noise_density=0.25",
    "data.mean_span=4",
    "data.sentinels=50",
    "data.input_length=77",
    "data.end_token=3",
    "data.start_token=4",
    "data.max_length=9",
    "train.steps=12345678901",
    "train.schedule_from=77",
    "train.batch=3",
    "train.accumulate=2",
    "train.context=135",
    "train.shards=2",
    "train.optimizer=adagrad",
    "train.lr=0.07",
    "train.min_lr_ratio=0.5",
    "train.warmup=7",
    "train.schedule=linear",
    "train.beta1=0.8",
    "train.beta2=0.95",
    "train.eps=1e-6",
    "train.muon.lr=0.05",
    "train.muon.momentum=0.9",
    "train.muon.nesterov=false",
    "train.muon.steps=6",
    "train.weight_decay=0.3",
    "train.clip=0.5",
    "train.clip_tensor=0.03",
    "train.seed=\"18446744073709551615\"",
    "train.eval_every=11",
    "train.eval_batches=12",
    "train.save_every=13",
    "train.log_every=14",
    "train.recompute=true",
    "train.activation_dtype=bfloat16",
    "train.precision=bfloat16",
    "train.whole_memory=true",
    "train.init=runs/first",
    "train.adapt=true",
    "train.select_from_head=false",
    "train.tune=lora",
    "train.freeze=embed.*",
    "train.lora.rank=4",
    "train.lora.alpha=3",
    "train.lr_mechanisms=7",
    "train.strength_steps=9",
    "train.prune.budgets=64",
    "train.prune.policy=tova",
    "train.prune.from_step=21",
    "train.prune.to_step=22",
    "train.prune.draw=true",
    "train.mem.from_step=31",
    "train.mem.to_step=32",
};
enum { OTHERS = sizeof other / sizeof *other };

/* Calls each(path, value) for every leaf of nested objects. */
static void leaves(const json_t *object, const char *prefix, void (*each)(const char *, const json_t *, void *),
                   void *user) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {
    char name[256];
    snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", key);
    if (json_is_object(value))
      leaves(value, name, each, user);
    else
      each(name, value, user);
  }
}

struct comparison {
  const json_t *defaults;
  int leaves, same;
};

static const json_t *at(const json_t *object, const char *name) {
  char part[256];
  const char *dot;
  while ((dot = strchr(name, '.'))) {
    snprintf(part, sizeof part, "%.*s", (int)(dot - name), name);
    object = json_object_get(object, part);
    name = dot + 1;
  }
  return json_object_get(object, name);
}

static void compare_leaf(const char *name, const json_t *value, void *user) {
  struct comparison *c = user;
  c->leaves++;
  if (!json_equal((json_t *)(uintptr_t)value, (json_t *)(uintptr_t)at(c->defaults, name))) return;
  c->same++;
  /* keys for token files or decoders only have their own tests */
  if (strcmp(name, "data.stream") && strcmp(name, "data.rows") && strcmp(name, "data.long_only") &&
      strcmp(name, "model.memory") && strcmp(name, "model.attention.bidirectional") &&
      strncmp(name, "model.encoder.", 14))
    assert_string_equal(name, "data.pack");
}

static json_t *json_of(const wn_recipe *recipe) {
  char *text = NULL;
  assert_ok(ctx, wn_recipe_json(ctx, recipe, &text));
  json_t *j = json_loads(text, 0, NULL);
  assert_non_null(j);
  wn_free(text);
  return j;
}

static void every_key_survives_a_round_trip(void **state) {
  (void)state;
  wn_recipe defaults, recipe, back;
  wn_recipe_init(&defaults);
  assert_ok(ctx, load_sets(&recipe, OTHERS, other));
  json_t *before = json_of(&defaults), *after = json_of(&recipe);
  struct comparison c = {.defaults = before};
  leaves(after, "", compare_leaf, &c);
  assert_int_equal(c.leaves, OTHERS + 8);
  assert_int_equal(c.same, 8);

  char *text = NULL, *again = NULL;
  assert_ok(ctx, wn_recipe_json(ctx, &recipe, &text));
  assert_ok(ctx, load_text(text, &back));
  assert_ok(ctx, wn_recipe_json(ctx, &back, &again));
  assert_string_equal(text, again);
  assert_memory_equal(&recipe, &back, sizeof back); /* both started as zeros, so padding is equal too */
  wn_free(text);
  wn_free(again);
  json_decref(before);
  json_decref(after);
}

/* Values for experts, which the values above exclude. */
static const char *const experts[] = {
    "model.experts.count=6",         "model.experts.active=3",         "model.experts.normalize=true",
    "model.experts.shared_width=40", "model.experts.shared_gate=true", "model.experts.balance=0.25",
};
enum { EXPERTS = sizeof experts / sizeof *experts };

static void keys_of_experts(void **state) {
  (void)state;
  static const struct {
    const char *set[2], *message;
  } refused[] = {{{"model.experts.active=7", NULL}, "experts.active is 7, expected 1 to experts.count, 6"},
                 {{"model.experts.count=0", NULL}, "experts.count is 0, but another key"},
                 {{"model.experts.shared_width=0", NULL}, "experts.shared_gate needs experts.shared_width"},
                 {{"model.ffn=geglu", NULL}, "experts and an ffn other than \"swiglu\" exclude each other"},
                 {{"model.bias=true", NULL}, "experts and bias exclude"},
                 {{"model.norm_place=post", NULL}, "experts and norm_place \"post\" exclude"},
                 {{"model.dropout_hidden=0.5", NULL}, "experts and dropout_hidden exclude"},
                 {{"model.experts.count=513", NULL}, "model.experts.count"}};
  wn_recipe recipe, back;
  char *text = NULL;
  assert_ok(ctx, load_sets(&recipe, EXPERTS, experts));
  assert_ok(ctx, wn_recipe_json(ctx, &recipe, &text));
  assert_ok(ctx, load_text(text, &back));
  wn_free(text);
  assert_memory_equal(&recipe, &back, sizeof back);
  assert_true(back.model.experts.count == 6 && back.model.experts.active == 3 && back.model.experts.normalize);
  assert_true(back.model.experts.shared_width == 40 && back.model.experts.shared_gate);
  assert_true(back.model.experts.balance == 0.25);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    const char *sets[EXPERTS + 2] = {0};
    memcpy(sets, experts, sizeof experts);
    sets[EXPERTS] = refused[i].set[0];
    sets[EXPERTS + 1] = "model.vocab_size=9";
    wn_status status = load_sets(&recipe, EXPERTS + 2, sets);
    if (status == WN_OK) status = wn_model_config_resolve(ctx, &recipe.model);
    if (status != WN_ERR_CONFIG || !strstr(wn_context_error(ctx), refused[i].message))
      fail_msg("%s: expected \"%s\", found \"%s\"", refused[i].set[0], refused[i].message, wn_context_error(ctx));
  }
}

static void explain_leaf(const char *name, const json_t *value, void *user) {
  (void)value;
  char line[300];
  snprintf(line, sizeof line, "  %s ", name);
  if (!strstr(user, line)) fail_msg("the help has no line for %s", name);
}

static void every_key_is_explained(void **state) {
  (void)state;
  char *text = NULL;
  assert_ok(ctx, wn_recipe_help(ctx, &text));
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  json_t *j = json_of(&recipe);
  leaves(j, "", explain_leaf, text);
  json_decref(j);
  int lines = 0;
  for (char *c = text; *c; c++) lines += *c == '\n';
  assert_int_equal(lines, OTHERS + 12 + 4 + EXPERTS); /* off_by_one, which sinks exclude; fade, which softcap does;
                                                       * encoder.selective; out_bias; experts */
  wn_free(text);
}

static void defaults_are_resolved(void **state) {
  (void)state;
  wn_recipe r;
  assert_ok(ctx, wn_recipe_load(ctx, NULL, NULL, 0, &r));
  assert_int_equal(r.model.vocab_size, 0); /* comes from the data later */
  assert_int_equal(r.model.context, 512);
  assert_int_equal(r.train.context, 512);
  assert_int_equal(r.model.kv_heads, r.model.heads);
  assert_int_equal(r.model.head_size * r.model.heads, r.model.width);
  assert_int_equal(r.model.ffn_width, 8 * r.model.width / 3);
  assert_false(r.model.attention.selective.enabled);
}

static void tasks_bring_vocabulary_and_context(void **state) {
  (void)state;
  static const char *const kinds[] = {"data.kind=variable_assignment", "data.kind=copy", "data.kind=parity"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    wn_recipe r;
    int64_t vocab, context;
    assert_ok(ctx, load_sets(&r, 1, &kinds[i]));
    wn_data_config_requirements(&r.data, &vocab, &context);
    assert_true(vocab > 1 && context > 1);
    assert_true(r.model.vocab_size == vocab && r.model.context == context && r.train.context == context);
    char set[64];
    snprintf(set, sizeof set, "model.vocab_size=%lld", (long long)vocab - 1);
    assert_refused(ctx, load_sets(&r, SETS(kinds[i], set)), WN_ERR_CONFIG, "\"model.vocab_size\" is");
    snprintf(set, sizeof set, "model.context=%lld", (long long)context - 1);
    assert_refused(ctx, load_sets(&r, SETS(kinds[i], set)), WN_ERR_CONFIG, "\"model.context\" is");
    snprintf(set, sizeof set, "train.context=%lld", (long long)context - 1);
    assert_refused(ctx, load_sets(&r, SETS(kinds[i], set)), WN_ERR_CONFIG, "\"train.context\" is");
  }
  int64_t vocab, context;
  wn_data_config tokens = {.kind = WN_DATA_TOKENS};
  wn_data_config_requirements(&tokens, &vocab, &context);
  assert_true(vocab == 0 && context == 0);
}

static void an_object_enables_its_mechanism(void **state) {
  (void)state;
  wn_recipe r;
  assert_ok(ctx, load_text("{\"model\": {\"attention\": {\"selective\": {}}}}", &r));
  assert_true(r.model.attention.selective.enabled && !r.model.attention.selective.mem.enabled);
  assert_ok(ctx, load_text("{\"model\": {\"attention\": {\"selective\": {\"mem\": {\"tau\": 2}}}}}", &r));
  assert_true(r.model.attention.selective.mem.enabled && r.model.attention.selective.mem.eps == 0.1);
  assert_ok(ctx, load_text("{\"model\": {\"attention\": {\"selective\": {\"head\": 2, \"enabled\": false}}}}", &r));
  assert_false(r.model.attention.selective.enabled);
  const char *off = "model.attention.selective=false", *head = "model.attention.selective.head=1";
  assert_ok(ctx, wn_recipe_load(ctx, path, &off, 1, &r));
  assert_false(r.model.attention.selective.enabled);
  assert_ok(ctx, load_sets(&r, 1, &head));
  assert_true(r.model.attention.selective.enabled);
}

static void sets_come_after_the_file(void **state) {
  (void)state;
  wn_recipe r;
  put_file(path, "{\"train\": {\"lr\": 0.5, \"steps\": 7}}", 34);
  const char *sets[] = {"train.lr=0.25", "train.lr=0.125", "data.val=x=y.bin"};
  assert_ok(ctx, wn_recipe_load(ctx, path, sets, 3, &r));
  assert_true(r.train.lr == 0.125 && r.train.steps == 7);
  assert_string_equal(r.data.val, "x=y.bin");
}

/* A recipe given as text equals a file with that content. --set applies after it. */
static void a_text_is_a_recipe(void **state) {
  (void)state;
  static const char text[] = "{\"model\": {\"layers\": 3}, \"train\": {\"lr\": 0.5}}";
  static wn_recipe file, memory;
  const char *const sets[] = {"train.lr=0.25"};
  put_file(path, text, strlen(text));
  assert_int_equal(wn_recipe_load(ctx, path, sets, 1, &file), WN_OK);
  assert_int_equal(wn_recipe_parse(ctx, text, strlen(text), sets, 1, &memory), WN_OK);
  assert_int_equal(memory.model.layers, 3);
  assert_true(memory.train.lr == 0.25);
  assert_memory_equal(&file, &memory, sizeof file);
  static const char wrong[] = "{\"model\": {\"layer\": 3}}";
  assert_int_equal(wn_recipe_parse(ctx, text, strlen(text) - 1, NULL, 0, &memory), WN_ERR_FORMAT); /* truncated */
  assert_int_equal(wn_recipe_parse(ctx, wrong, strlen(wrong), NULL, 0, &memory), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "layers"));
  assert_int_equal(memory.model.layers, 3); /* untouched */
}

static void mistakes_are_named(void **state) {
  (void)state;
  wn_recipe r;
  memset(&r, 0x5A, sizeof r);
  wn_recipe untouched = r;
  static const struct {
    const char *text;
    wn_status status;
    const char *part;
  } files[] = {
      {"{\"model\": {\n  \"layers\": 2,\n  \"width\" 3}}", WN_ERR_FORMAT, ".json:3:"},
      {"{\"train\": {\"lr\": 1},\n \"train\": {}}", WN_ERR_FORMAT, ".json:2:"},
      {"{\"train\": {\"lr\": Infinity}}", WN_ERR_FORMAT, ".json:1:"},
      {"[1]", WN_ERR_CONFIG, "expected a JSON object, found a list"},
      {"{\"modle\": {}}", WN_ERR_CONFIG, "unknown key \"modle\"; did you mean \"model\"?"},
      {"{\"model\": {\"widht\": 3}}", WN_ERR_CONFIG, "unknown key \"model.widht\"; did you mean \"model.width\"?"},
      {"{\"train\": {\"learning_rate\": 3}}", WN_ERR_CONFIG, "unknown key \"train.learning_rate\""},
      {"{\"lr\": 3}", WN_ERR_CONFIG, "unknown key \"lr\"; did you mean \"train.lr\"?"},
      {"{\"model\": {\"selective\": {}}}", WN_ERR_CONFIG, "did you mean \"model.attention.selective\"?"},
      {"{\"train\": {\"lr\": -1}}", WN_ERR_CONFIG, "\"train.lr\" is -1; it must be between 0 and 1000"},
      {"{\"train\": {\"mem\": {\"from_step\": 5, \"to_step\": 4}}}", WN_ERR_CONFIG, "\"train.mem.to_step\" is 4"},
      {"{\"train\": {\"prune\": {\"from_step\": 5, \"to_step\": 4}}}", WN_ERR_CONFIG, "\"train.prune.to_step\" is 4"},
      {"{\"train\": {\"prune\": {\"policy\": \"lru\"}}}", WN_ERR_CONFIG, "train.prune.policy"},
      {"{\"train\": {\"steps\": 0}}", WN_ERR_CONFIG, "\"train.steps\" is 0"},
      {"{\"model\": {\"layers\": 99999999999}}", WN_ERR_CONFIG, "\"model.layers\" is 99999999999"},
      {"{\"data\": {\"kind\": \"cpoy\"}}", WN_ERR_CONFIG, "did you mean \"copy\"?"},
      {"{\"model\": {\"logit_softcap\": 1e-40}}", WN_ERR_CONFIG,
       "logit_softcap is 1e-40; expected 0 or at least 1e-06"},
      {"{\"model\": {\"attention\": {\"softcap\": {\"cap\": 1e-40}}}}", WN_ERR_CONFIG,
       "softcap.cap is 1e-40; expected 0 or at least 1e-06"},
      {"{\"model\": {\"width\": 100, \"heads\": 3}}", WN_ERR_CONFIG, "not a multiple of heads (3)"},
      {"{\"model\": {\"heads\": 6, \"kv_heads\": 4}}", WN_ERR_CONFIG, "not a multiple of kv_heads (4)"},
      {"{\"model\": {\"position\": \"rope\", \"head_size\": 3}}", WN_ERR_CONFIG, "even head_size"},
      {"{\"model\": {\"attention\": {\"selective\": {\"head\": 6}}}}", WN_ERR_CONFIG, "selective.head is 6"},
      {"{\"data\": {\"kind\": \"copy\", \"pack\": true, \"document_token\": 1}}", WN_ERR_CONFIG, "is for token files"},
      {"{\"data\": {\"document_token\": 256}, \"model\": {\"vocab_size\": 256}}", WN_ERR_CONFIG,
       "\"data.document_token\" is 256; \"model.vocab_size\" is 256"},
      {"{\"data\": {\"eval_values\": 101}}", WN_ERR_CONFIG, "\"data.eval_values\" is 101"},
      {"{\"data\": {\"kind\": \"parity\", \"max_length\": 1}}", WN_ERR_CONFIG, "parity needs at least 2"},
      {"{\"train\": {\"context\": 513}}", WN_ERR_CONFIG, "\"train.context\" is 513"},
      {"{\"train\": {\"batch\": 1048576, \"accumulate\": 1048576}}", WN_ERR_CONFIG, "tokens per step"},
      {"{\"train\": {\"activation_dtype\": \"float64\"}}", WN_ERR_CONFIG, "must be float32 or bfloat16"},
  };
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    assert_refused(ctx, load_text(files[i].text, &r), files[i].status, files[i].part);
    assert_non_null(strstr(wn_context_error(ctx), path)); /* the message names the file */
  }
  static const struct {
    const char *set;
    wn_status status;
    const char *part;
  } sets[] = {
      {"train.lrr=3", WN_ERR_CONFIG, "set train.lrr=3: unknown key \"train.lrr\"; did you mean \"train.lr\"?"},
      {"train.lr=fast", WN_ERR_CONFIG, "set train.lr=fast: \"train.lr\" must be a number, not a string"},
      {"train.lr=", WN_ERR_CONFIG, "\"train.lr\" must be a number"},
      {"train.lr=1e999", WN_ERR_CONFIG, "\"train.lr\" must be a number"},
      {"train.lr", WN_ERR_ARGUMENT, "\"train.lr\" is not of the form key=value"},
      {"train=3", WN_ERR_CONFIG, "\"train\" must be an object"},
      {"train.lr.x=3", WN_ERR_CONFIG, "\"train.lr\" must be a number, not an object"},
      {"train.steps=1.5", WN_ERR_CONFIG, "\"train.steps\" must be a whole number"},
  };
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
    assert_refused(ctx, load_sets(&r, 1, &sets[i].set), sets[i].status, sets[i].part);
  char missing[700];
  snprintf(missing, sizeof missing, "%s/none.json", folder);
  assert_refused(ctx, wn_recipe_load(ctx, missing, NULL, 0, &r), WN_ERR_IO, "none.json: No such file");
  assert_memory_equal(&r, &untouched, sizeof r); /* a failure leaves the caller's recipe as it was */
  assert_refused(ctx, wn_recipe_load(ctx, NULL, NULL, 0, NULL), WN_ERR_ARGUMENT, "wn_recipe_load");
}

static void structs_filled_by_hand_are_checked(void **state) {
  (void)state;
  wn_recipe r;
  char *text = NULL;
  wn_recipe_init(&r);
  r.train.optimizer = (wn_optimizer_kind)77;
  assert_refused(ctx, wn_recipe_json(ctx, &r, &text), WN_ERR_CONFIG, "\"train.optimizer\"");
  wn_recipe_init(&r);
  r.train.lr = 0.0 / (r.model.dropout * 0); /* NaN */
  assert_refused(ctx, wn_recipe_json(ctx, &r, &text), WN_ERR_CONFIG, "\"train.lr\"");
  wn_recipe_init(&r);
  memset(r.data.train, 'x', sizeof r.data.train);
  assert_refused(ctx, wn_recipe_json(ctx, &r, &text), WN_ERR_CONFIG, "\"data.train\"");
  assert_null(text);
}

static void packing_is_for_token_files(void **state) {
  (void)state;
  wn_recipe r;
  assert_ok(ctx, load_text("{\"data\": {\"pack\": true, \"document_token\": 0, \"train\": \"t.bin\"}}", &r));
  assert_true(r.data.pack);
  assert_ok(ctx, load_text("{\"data\": {\"stream\": true}, \"model\": {\"memory\": 64, \"position\": \"rope\"}}", &r));
  assert_true(r.data.stream && r.model.recurrence == 64);
  assert_refused(ctx, load_text("{\"model\": {\"memory\": 64, \"position\": \"rope\"}}", &r), WN_ERR_CONFIG,
                 "\"data.stream\"");
  assert_refused(ctx, load_text("{\"data\": {\"stream\": true}, \"model\": {\"memory\": 64}}", &r), WN_ERR_CONFIG,
                 "\"learned\"");
  assert_ok(ctx, load_text("{\"data\": {\"rows\": \"document\", \"long_only\": true, \"document_token\": 1}}", &r));
  assert_true(r.data.rows == WN_ROWS_DOCUMENT && r.data.long_only);
  assert_refused(ctx, load_sets(&r, SETS("data.rows=document", "data.kind=copy")), WN_ERR_CONFIG, "\"data.rows\"");
  assert_refused(ctx, load_sets(&r, SETS("data.rows=document", "data.stream=true")), WN_ERR_CONFIG, "\"data.rows\"");
  assert_refused(ctx, load_sets(&r, SETS("data.rows=document", "data.pack=true", "data.document_token=1")),
                 WN_ERR_CONFIG, "\"data.rows\"");
  assert_refused(ctx, load_sets(&r, SETS("data.long_only=true")), WN_ERR_CONFIG, "\"data.long_only\"");
  assert_refused(ctx, load_sets(&r, SETS("data.stream=true", "data.kind=copy")), WN_ERR_CONFIG, "\"data.stream\"");
  assert_refused(ctx, load_sets(&r, SETS("data.stream=true", "data.pack=true", "data.document_token=1")), WN_ERR_CONFIG,
                 "\"data.stream\"");
}

static void the_recipes_of_the_project_load(void **state) {
  (void)state;
  glob_t found;
  assert_int_equal(glob(WN_TEST_DIR "/../recipes/*.json", 0, NULL, &found), 0);
  for (size_t i = 0; i < found.gl_pathc; i++) {
    wn_recipe r;
    assert_ok(ctx, wn_recipe_load(ctx, found.gl_pathv[i], NULL, 0, &r));
    assert_true(r.model.attention.selective.enabled ==
                (strstr(found.gl_pathv[i], "-selective.json") || strstr(found.gl_pathv[i], "-mem.json")));
  }
  globfree(&found);
}

static int setup(void **state) {
  (void)state;
  ctx = make_context();
  make_folder(folder);
  snprintf(path, sizeof path, "%s/recipe.json", folder);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  remove_folder(folder);
  wn_context_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_key_survives_a_round_trip),
      cmocka_unit_test(every_key_is_explained),
      cmocka_unit_test(keys_of_experts),
      cmocka_unit_test(defaults_are_resolved),
      cmocka_unit_test(tasks_bring_vocabulary_and_context),
      cmocka_unit_test(an_object_enables_its_mechanism),
      cmocka_unit_test(sets_come_after_the_file),
      cmocka_unit_test(a_text_is_a_recipe),
      cmocka_unit_test(mistakes_are_named),
      cmocka_unit_test(structs_filled_by_hand_are_checked),
      cmocka_unit_test(packing_is_for_token_files),
      cmocka_unit_test(the_recipes_of_the_project_load),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
