/* Every allocation of the public functions fails once. The call must report that it is out of memory, must not leak
 * (the run under sanitizers also sees other libraries' memory), and must succeed afterwards.
 *
 * The library's allocator is compiled into this program with a calloc and mmap that can fail. The JSON library gets a
 * malloc that can fail, except while it parses: its parser may read invalid memory after a failed allocation. Each case
 * runs once to count its allocations, then once for each of them (WINNOW_TEST_ALL) or for about 60, a different
 * selection in each case. */
#include <stdlib.h>
#include <sys/mman.h>

/* When json_pack fails it leaks its arguments, so under the sanitizer only the library's own allocations and mmap fail.
 */
#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1, PLACES = 25 };
#else
enum { SANITIZED = 0, PLACES = 60 };
#endif

static long fail_at, allocations;
static int parsing;
static int json_failed; /* the JSON library's malloc failed: the error may be missing or unclear */
static int refuses(void) {
  return ++allocations == fail_at;
}
static void *failing_calloc(size_t n, size_t size) {
  return refuses() ? NULL : calloc(n, size);
}
static void *failing_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return refuses() ? MAP_FAILED : mmap(at, bytes, protection, flags, fd, offset);
}
static void *failing_malloc(size_t bytes) {
  if (SANITIZED || parsing || !refuses()) return malloc(bytes);
  json_failed = 1;
  return NULL;
}
#define calloc failing_calloc
#define mmap failing_mmap
#include "base/alloc.c"
#undef calloc
#undef mmap

#include "train/tiny.h"
#include "policies.h"

#include <dlfcn.h>
#include <jansson.h>
#include <math.h>

#include "winnow/winnow.h"

json_t *json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *error) {
  json_t *(*next)(const char *, size_t, size_t, json_error_t *);
  *(void **)&next = dlsym(RTLD_NEXT, "json_loadb");
  parsing++;
  json_t *value = next(text, bytes, flags, error);
  parsing--;
  return value;
}
json_t *json_loads(const char *text, size_t flags, json_error_t *error) {
  json_t *(*next)(const char *, size_t, json_error_t *);
  *(void **)&next = dlsym(RTLD_NEXT, "json_loads");
  parsing++;
  json_t *value = next(text, flags, error);
  parsing--;
  return value;
}

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    status = (call);                                                                                                   \
    if (status != WN_OK) goto done;                                                                                    \
  } while (0)

enum { T = 12, V = 300 };
static char folder[256];
static const int32_t ids[2 * T] = {1, 5, 2, 9, 0, 12, 3, 7, 4, 11, 6, 2, 8, 1, 0, 3, 12, 5, 9, 10, 2, 7, 6, 4};

static const char *in(const char *name) {
  static char path[4][400];
  static int next;
  char *to = path[next++ % 4];
  snprintf(to, sizeof path[0], "%s/%s", folder, name);
  return to;
}

static wn_status config_of(wn_context *ctx, const char *attention, wn_model_config *c) {
  wn_model_config_init(c);
  c->vocab_size = V, c->context = T, c->layers = 2, c->width = 16, c->heads = 4, c->kv_heads = 2, c->head_size = 4;
  c->ffn_width = 10, c->position = WN_POS_ROPE, c->init_std = 0.3;
  return wn_attention_config_parse(ctx, attention, &c->attention);
}

static wn_status model_of(wn_context *ctx, const char *attention, wn_model **out) {
  wn_model_config c;
  *out = NULL;
  const wn_status status = config_of(ctx, attention, &c);
  return status == WN_OK ? wn_model_create(ctx, &c, 3, out) : status;
}

/* ---- cases; `prepare` makes their files, without failures ---- */

static wn_status files(wn_context *ctx) {
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  int32_t *tokens = NULL;
  size_t count = 0;
  char text[400];
  wn_status status;
  for (int i = 0; i < 399; i++) text[i] = "the cat sat\n"[i * 7 % 12];
  TRY(model_of(ctx, "{\"selective\":{}}", &model));
  TRY(wn_tokenizer_load(ctx, "bytes", &tok));
  TRY(wn_model_save(ctx, model, tok, in("model")));
  wn_model_destroy(model);
  TRY(model_of(ctx, "{}", &model));
  TRY(wn_model_save(ctx, model, tok, in("dense")));
  TRY(wn_model_save(ctx, model, NULL, in("bare")));
  TRY(wn_tokenizer_encode(ctx, tok, text, sizeof text - 1, false, false, &tokens, &count));
  TRY(wn_token_file_write(ctx, in("tokens.bin"), "llmc", V, tokens, count));
  TRY(wn_token_file_write(ctx, in("report.bin"), "llmc", V, tokens + 7, count - 7));
  TRY(wn_file_write(ctx, in("text.txt"), text, sizeof text - 1));
  TRY(wn_make_dirs(ctx, in("run")));
  static const char line[] = "{\"step\":1,\"loss\":2,\"val_loss\":3}\n";
  TRY(wn_file_write(ctx, in("run/log.jsonl"), line, sizeof line - 1));
done:
  wn_tokens_free(tokens);
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  return status;
}

static wn_status case_models(wn_context *ctx) {
  wn_model *a = NULL, *b = NULL;
  char *json = NULL;
  float logits[2 * T * V];
  wn_budgets budgets = {0};
  wn_status status;
  TRY(wn_model_load(ctx, in("model"), NULL, &a));
  TRY(wn_model_config_json(ctx, wn_model_config_get(a), &json));
  TRY(wn_model_logits(ctx, a, ids, 2, T, NULL, logits));
  budgets_init(&budgets);
  TRY(wn_budgets_parse(ctx, wn_model_config_get(a), "3:3,4:4", &budgets));
  TRY(wn_budgets_save(ctx, &budgets, in("budgets.json")));
  TRY(wn_budgets_parse(ctx, wn_model_config_get(a), "3,5", &budgets));
  TRY(wn_model_logits(ctx, a, ids, 2, T, WN_OPTIONS(wn_logits_options, .budgets = &budgets), logits));
  TRY(wn_model_save(ctx, a, NULL, in("again")));
  TRY(wn_model_load(ctx, in("again"), WN_OPTIONS(wn_model_load_options, .as_float = true), &b));
  TRY(wn_model_set_attention(ctx, b, "threshold.tau=0.9"));
  TRY(wn_model_set_control_tokens(ctx, b, ids, 3));
  TRY(wn_budgets_load(ctx, in("budgets.json"), &budgets));
done:
  wn_text_free(json);
  wn_budgets_clear(&budgets);
  wn_model_destroy(a);
  wn_model_destroy(b);
  return status;
}

static wn_status feed_session(wn_context *ctx, wn_model *model, const wn_session_options *options) {
  wn_session *s = NULL;
  float logits[2 * V];
  wn_status status;
  TRY(wn_session_create(ctx, model, options, &s));
  TRY(wn_session_feed(ctx, s, ids, T, 5, logits));
done:
  wn_session_destroy(s);
  return status;
}

static wn_status case_sessions(wn_context *ctx) {
  wn_model *model = NULL;
  wn_budgets budgets = {0};
  wn_status status;
  TRY(model_of(ctx, "{\"selective\":{\"per_kv_head\":true},\"window\":6,\"window_layers\":\"01\"}", &model));
  TRY(feed_session(ctx, model, &(wn_session_options){.size = sizeof(wn_session_options), .sequences = 2}));
  TRY(feed_session(ctx, model,
                   &(wn_session_options){.size = sizeof(wn_session_options), .sequences = 1, .capacity = 20}));
  for (int i = 0; i < 3; i++) {
    static const wn_policy policies[] = {WN_POLICY_SELECTIVE, WN_POLICY_H2O, WN_POLICY_STREAMING};
    budgets_init(&budgets);
    budgets.policy = policies[i];
    budgets.per_kv_head = i == 1;
    budgets.cache_positions = i == 2;
    TRY(wn_budgets_parse(ctx, wn_model_config_get(model), i == 2 ? "3,4" : "3:5,4:2", &budgets));
    TRY(feed_session(ctx, model,
                     &(wn_session_options){.size = sizeof(wn_session_options), .sequences = 2, .budgets = &budgets}));
    wn_budgets_clear(&budgets);
  }
done:
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  return status;
}

static wn_status case_generation(wn_context *ctx) {
  static const char *const stops[] = {"never", "\n\n"};
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  wn_status status;
  TRY(model_of(ctx, "{}", &model));
  TRY(wn_tokenizer_load(ctx, "bytes", &tok));
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  o.tok = tok;
  o.text = "the cat", o.bytes = 7;
  o.max_tokens = 5;
  o.stop_strings = stops, o.stop_string_count = 2;
  wn_generate_result r;
  TRY(wn_generate(ctx, model, &o, &r));
  assert_true(r.tokens > 0);
done:
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  return status;
}

static wn_status case_encoder_decoder(wn_context *ctx) {
  wn_model_config c;
  wn_model *model = NULL;
  wn_session *s = NULL;
  float logits[2 * V];
  wn_status status;
  TRY(config_of(ctx, "{\"buckets\":true}", &c));
  c.position = WN_POS_NONE;
  c.encoder.layers = 1;
  TRY(wn_model_create(ctx, &c, 3, &model));
  TRY(wn_model_save(ctx, model, NULL, in("encoder")));
  TRY(wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = 2), &s));
  TRY(wn_session_encode(ctx, s, ids, NULL, T));
  TRY(wn_session_feed(ctx, s, ids, 3, 0, logits));
done:
  wn_session_destroy(s);
  wn_model_destroy(model);
  return status;
}

static wn_status case_attention(wn_context *ctx) {
  static float x[2 * T * 4], y[2 * T * 4], dy[2 * T * 4], dx[3][2 * T * 4];
  int32_t evicted_at[T];
  wn_attention_config c;
  wn_attention_plan *plan = NULL;
  wn_budgets budgets = {0};
  wn_model_config shape = {.layers = 1, .kv_heads = 2};
  wn_status status;
  wn_attention_arrays a = {.B = 1, .T = T, .H = 2, .Hkv = 2, .D = 4, .dtype = WN_F32, .q = x, .k = x, .v = x, .y = y};
  for (int i = 0; i < 2 * T * 4; i++) x[i] = (float)(i % 7) - 3, dy[i] = 1;
  TRY(wn_attention_config_parse(ctx, "{\"selective\":{}}", &c));
  TRY(wn_attention_run(ctx, &c, &a));
  a.dy = dy, a.dq = dx[0], a.dk = dx[1], a.dv = dx[2];
  TRY(wn_attention_plan_create(ctx, &c, &a, &plan));
  TRY(wn_attention_plan_forward(plan));
  TRY(wn_attention_plan_backward(plan));
  a.dy = NULL, a.dq = a.dk = a.dv = NULL;
  budgets_init(&budgets);
  TRY(wn_budgets_parse(ctx, &shape, "4", &budgets));
  TRY(wn_attention_evictions(ctx, &c, &a, &budgets, evicted_at));
done:
  wn_attention_plan_destroy(plan);
  wn_budgets_clear(&budgets);
  return status;
}

static wn_status use_tokenizer(wn_context *ctx, const char *spec, const char *dir) {
  static const char text[] = "Hello, world 2024!\n the end";
  wn_tokenizer *tok = NULL;
  wn_text_stream *stream = NULL;
  wn_gguf_values *values = NULL;
  int32_t *tokens = NULL;
  char *back = NULL;
  size_t count, bytes;
  const char *piece;
  wn_status status;
  TRY(wn_tokenizer_load(ctx, spec, &tok));
  TRY(wn_tokenizer_encode(ctx, tok, text, sizeof text - 1, wn_tokenizer_bos(tok) >= 0, false, &tokens, &count));
  TRY(wn_tokenizer_decode(ctx, tok, tokens, count, &back, &bytes));
  TRY(wn_text_stream_create(ctx, tok, &stream));
  for (size_t i = 0; i < count; i++) TRY(wn_text_stream_push(ctx, stream, tokens[i], &piece, &bytes));
  if (wn_tokenizer_bos(tok) >= 0) {
    TRY(wn_gguf_values_create(ctx, &values));
    TRY(wn_tokenizer_gguf(ctx, tok, wn_tokenizer_vocab_size(tok), values));
  }
  TRY(wn_make_dirs(ctx, dir));
  if (values) { /* it says which of the values it had no memory for */
    char path[500];
    snprintf(path, sizeof path, "%s/only.gguf", dir);
    TRY(wn_gguf_write(ctx, path, values, NULL, 0, NULL, NULL));
  }
  TRY(wn_tokenizer_save(ctx, tok, dir));
done:
  wn_gguf_values_destroy(values);
  wn_text_stream_destroy(stream);
  wn_text_free(back);
  wn_tokens_free(tokens);
  wn_tokenizer_destroy(tok);
  return status;
}

static wn_status case_tokenizers(wn_context *ctx) {
  wn_status status;
  TRY(use_tokenizer(ctx, "bytes", in("tok-bytes")));
  TRY(use_tokenizer(ctx, WN_TEST_DIR "/golden/bpe/gpt2.json", in("tok-gpt2")));
  TRY(use_tokenizer(ctx, WN_TEST_DIR "/golden/bpe/llama3.gguf", in("tok-llama3")));
done:
  return status;
}

static wn_status case_chat(wn_context *ctx) {
  wn_tokenizer *tok = NULL;
  int32_t *tokens = NULL;
  size_t count;
  wn_status status;
  const wn_chat_message messages[] = {{WN_CHAT_SYSTEM, "Be brief."}, {WN_CHAT_USER, "Why?"}};
  const wn_chat_template *template = wn_chat_template_find("chatml");
  if (!template) return WN_ERR_ARGUMENT;
  TRY(wn_tokenizer_load(ctx, WN_TEST_DIR "/golden/bpe/smollm.gguf", &tok));
  TRY(wn_chat_encode(ctx, tok, template, messages, 2, true, &tokens, &count));
done:
  wn_tokens_free(tokens);
  wn_tokenizer_destroy(tok);
  return status;
}

static wn_status case_imports(wn_context *ctx) {
  static const char *const paths[] = {WN_TEST_DIR "/golden/hf/llama", WN_TEST_DIR "/golden/hf/gpt2.gguf"};
  wn_status status;
  for (int i = 0; i < 2; i++) {
    wn_model *model = NULL;
    wn_model_origin origin;
    TRY(wn_model_origin_read(ctx, paths[i], &origin));
    TRY(wn_model_load(ctx, paths[i], NULL, &model));
    wn_model_destroy(model);
  }
  TRY(wn_model_convert(
      ctx, paths[0], in("out.gguf"),
      &(wn_convert_options){.size = sizeof(wn_convert_options), .to = WN_CONVERT_GGUF, .overwrite = true}, NULL));
  TRY(wn_model_convert(
      ctx, paths[1], in("out-hf"),
      &(wn_convert_options){.size = sizeof(wn_convert_options), .to = WN_CONVERT_HF, .overwrite = true}, NULL));
  TRY(wn_model_convert(
      ctx, in("bare"), in("own.gguf"),
      &(wn_convert_options){.size = sizeof(wn_convert_options), .to = WN_CONVERT_WINNOW_GGUF, .overwrite = true},
      NULL));
done:
  return status;
}

static wn_status case_data(wn_context *ctx) {
  const char *inputs[] = {in("text.txt")};
  wn_data_prepare_options o;
  wn_data_prepare_result r;
  wn_data_source *source = NULL;
  wn_data_config c = {.kind = WN_DATA_TOKENS, .document_token = -1};
  int32_t tokens[2 * T], targets[2 * T];
  wn_status status;
  wn_data_prepare_options_init(&o, sizeof o);
  o.inputs = inputs, o.input_count = 1, o.tokenizer = "bytes", o.out_dir = in("prepared");
  o.document_break = "line";
  o.val_fraction = 0.3;
  TRY(wn_data_prepare(ctx, &o, &r));
  snprintf(c.train, sizeof c.train, "%s", in("tokens.bin"));
  TRY(wn_data_source_create(ctx, &c, "train", T, V, &source));
  TRY(wn_data_source_batch(ctx, source, 1, 0, 2, tokens, targets, NULL));
done:
  wn_data_source_destroy(source);
  return status;
}

static wn_status recipe_of(wn_context *ctx, const char *const *more, int count, wn_recipe *out) {
  char train[400], val[400];
  const char *sets[24] = {"model.context=12",       "model.vocab_size=300", "model.layers=1",     "model.width=16",
                          "model.heads=2",          "data.kind=tokens",     "train.steps=2",      "train.batch=2",
                          "train.eval_every=1",     "train.eval_batches=1", "train.save_every=1", "train.lr=0.01",
                          "model.position=\"rope\""};
  int n = 13;
  snprintf(train, sizeof train, "data.train=\"%s\"", in("tokens.bin"));
  snprintf(val, sizeof val, "data.val=\"%s\"", in("report.bin"));
  sets[n++] = train, sets[n++] = val;
  for (int i = 0; i < count; i++) sets[n++] = more[i];
  return wn_recipe_load(ctx, NULL, sets, n, out);
}

static wn_status case_training(wn_context *ctx) {
  static const char *const more[] = {"model.attention.selective.enabled=true", "train.prune.budgets=\"6\"",
                                     "train.accumulate=2"};
  wn_recipe recipe;
  wn_train_log log = {0};
  char *text = NULL;
  wn_status status;
  tiny_remove(in("run"));
  TRY(recipe_of(ctx, more, 3, &recipe));
  TRY(wn_recipe_json(ctx, &recipe, &text));
  wn_text_free(text);
  text = NULL;
  TRY(wn_recipe_help(ctx, &text));
  TRY(wn_train_run(ctx, &recipe, in("run"), false, NULL, NULL));
  recipe.train.steps = 3;
  TRY(wn_train_run(ctx, &recipe, in("run"), true, NULL, NULL));
  TRY(wn_train_log_load(ctx, in("run"), &log));
done:
  wn_train_log_clear(&log);
  wn_text_free(text);
  return status;
}

static wn_status case_adapting(wn_context *ctx) {
  static const char *const sets[] = {"model.attention.selective=true", "train.steps=1", "train.batch=1",
                                     "train.tune=lora", "train.eval_every=0"};
  const char *all[8];
  char train[400], val[400];
  wn_recipe recipe;
  wn_status status;
  tiny_remove(in("adapted"));
  snprintf(train, sizeof train, "data.train=\"%s\"", in("tokens.bin"));
  snprintf(val, sizeof val, "data.val=\"%s\"", in("report.bin"));
  memcpy(all, sets, sizeof sets);
  all[5] = train, all[6] = val, all[7] = "train.context=12";
  TRY(wn_adapt_recipe(ctx, in("dense"), NULL, all, 8, &recipe));
  TRY(wn_train_run(ctx, &recipe, in("adapted"), false, NULL, NULL));
done:
  return status;
}

static wn_status case_evaluation(wn_context *ctx) {
  static const char text[] = "the cat sat on the mat, the cat sat on the mat";
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  wn_eval_result r;
  wn_status status;
  TRY(wn_model_load(ctx, in("model"), NULL, &model));
  TRY(wn_tokenizer_load(ctx, in("model"), &tok));
  TRY(wn_eval_text(ctx, model, tok, text, sizeof text - 1,
                   &(wn_eval_options){.size = sizeof(wn_eval_options), .batch = 2}, &r));
done:
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  return status;
}

static wn_status case_pruning(wn_context *ctx) {
  wn_model *model = NULL;
  wn_prune_options o;
  wn_prune_compare_options compare;
  wn_prune_curve curve = {0}, loaded = {0};
  wn_prune_comparison comparison = {0}, again = {0};
  double loss;
  wn_status status;
  char search[400], report[400];
  tiny_remove(in("search"));
  snprintf(search, sizeof search, "%s", in("tokens.bin"));
  snprintf(report, sizeof report, "%s", in("report.bin"));
  TRY(wn_model_load(ctx, in("model"), NULL, &model));
  wn_prune_options_init(&o, sizeof o);
  o.search = (wn_prune_data){.path = search, .rows = 2}, o.report = (wn_prune_data){.path = report, .rows = 2};
  o.step = 4, o.target = 1e30, o.max_steps = 1, o.memory = UINT64_C(1) << 30;
  TRY(wn_prune_search(ctx, model, &o, in("search"), false, NULL, NULL, NULL));
  TRY(wn_prune_search(ctx, model, &o, in("search"), true, NULL, NULL, &curve));
  TRY(wn_prune_curve_save_csv(ctx, &curve, in("curve.csv")));
  TRY(wn_prune_curve_save_svg(ctx, &curve, "a search", in("curve.svg")));
  TRY(wn_prune_curve_load(ctx, in("search/search.json"), &loaded));
  TRY(wn_prune_measure(ctx, model, &o.search, 0, 0, NULL, &loss, NULL));
  wn_prune_compare_options_init(&compare, sizeof compare);
  const wn_prune_subject subject = {.name = "it", .model = model, .searched = &loaded};
  compare.subjects = &subject, compare.subject_count = 1, compare.data = o.search;
  compare.tokens = (const int64_t[]){4}, compare.token_count = 1;
  compare.policies = (const wn_policy[]){WN_POLICY_SELECTIVE, WN_POLICY_WINDOW}, compare.policy_count = 2;
  TRY(wn_prune_compare(ctx, &compare, NULL, NULL, &comparison));
  TRY(wn_prune_comparison_save_json(ctx, &comparison, in("compare.json")));
  TRY(wn_prune_comparison_save_csv(ctx, &comparison, in("compare.csv")));
  TRY(wn_prune_comparison_save_svg(ctx, &comparison, "policies", in("compare.svg")));
  TRY(wn_prune_comparison_load(ctx, in("compare.json"), &again));
done:
  wn_prune_curve_clear(&curve);
  wn_prune_curve_clear(&loaded);
  wn_prune_comparison_clear(&comparison);
  wn_prune_comparison_loaded_clear(&again);
  wn_model_destroy(model);
  return status;
}

static wn_status case_analysis(wn_context *ctx) {
  static const char text[] = "the cat sat on the mat, the cat sat on the mat";
  const wn_eval_options options = {.size = sizeof options, .batch = 2};
  wn_model *model = NULL, *spans = NULL;
  wn_tokenizer *tok = NULL;
  wn_meaning_report *meaning = NULL;
  wn_look_report *look = NULL;
  wn_span_report *span = NULL;
  wn_survival_report *survival = NULL;
  wn_sweep_report *sweep = NULL;
  wn_budgets budgets = {0};
  wn_fit fit;
  wn_status status;
  TRY(wn_model_load(ctx, in("model"), NULL, &model));
  TRY(model_of(ctx, "{\"span\":{\"limit\":8,\"ramp\":2,\"dynamic\":true}}", &spans));
  TRY(wn_tokenizer_load(ctx, "bytes", &tok));
  const wn_analysis_input input = {.tok = tok, .text = text, .bytes = sizeof text - 1, .options = &options};
  TRY(wn_analyze_meaning(ctx, model, &input, NULL, &meaning));
  TRY(wn_meaning_save_svg(ctx, meaning, "tokens", in("meaning.svg")));
  TRY(wn_fit_curve(ctx, WN_FIT_SQRT, meaning->x, meaning->y, meaning->points, &fit));
  TRY(wn_analyze_look(ctx, model, &input, &(wn_look_options){.size = sizeof(wn_look_options), .early = 4}, &look));
  TRY(wn_look_save_svg(ctx, look, "similarity", in("look.svg")));
  TRY(wn_analyze_spans(ctx, spans, &input, &span));
  budgets_init(&budgets);
  TRY(wn_budgets_parse(ctx, wn_model_config_get(model), "4", &budgets));
  const wn_budgets *const list[] = {&budgets};
  TRY(wn_analyze_survival(ctx, model, &input, list, 1, &survival));
  TRY(wn_survival_save_svg(ctx, survival, "survival", in("survival.svg")));
  const double taus[] = {0.5, 1};
  TRY(wn_analyze_sweep(
      ctx, spans, &input,
      &(wn_sweep_options){.size = sizeof(wn_sweep_options), .taus = taus, .tau_count = 2, .gamma = 0.9}, &sweep));
done:
  wn_sweep_report_destroy(sweep);
  wn_survival_report_destroy(survival);
  wn_span_report_destroy(span);
  wn_look_report_destroy(look);
  wn_meaning_report_destroy(meaning);
  wn_budgets_clear(&budgets);
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_model_destroy(spans);
  return status;
}

static wn_status case_report(wn_context *ctx) {
  static const double x[] = {1, 2, 3}, y[] = {3, 2, 1};
  const wn_figure_series series = {.name = "a", .count = 3, .x = {x}, .y = y};
  const wn_figure figure = {.id = "f",
                            .title = "A figure",
                            .about = "It falls.",
                            .command = "winnow",
                            .axes = 1,
                            .x = {{"step", false}},
                            .y = {"loss", false},
                            .series = &series,
                            .series_count = 1};
  static const char text[] = "the cat sat on the mat";
  wn_page *page = NULL;
  wn_events *events = NULL;
  wn_report_options options;
  char *html = NULL;
  wn_status status;
  TRY(wn_page_create(
      ctx, &(wn_page_options){.size = sizeof(wn_page_options), .title = "A page", .figures = in("figures")}, &page));
  TRY(wn_page_add_section(page, "A section"));
  TRY(wn_page_add_figure(page, &figure));
  TRY(wn_page_add_table(page, &figure, (const char *const[]){"a", "b"}, 2, (const char *const[]){"1", "x"}, 1));
  TRY(wn_page_html(page, &html, NULL));
  TRY(wn_page_save(page, in("page.html"), NULL));
  wn_report_options_init(&options, sizeof options);
  options.inputs = (const char *const[]){in("model"), in("run")}, options.input_count = 2;
  options.text = text, options.text_bytes = sizeof text - 1, options.budgets = "4";
  TRY(wn_report_save(ctx, &options, in("report.html"), NULL));
  TRY(wn_events_open(ctx, in("events"), 1e9, 0, &events));
  TRY(wn_events_add(ctx, events, 1e9, 1, &(wn_event_value){"loss/train", 2.5}, 1));
done:
  wn_events_close(events);
  wn_text_free(html);
  wn_page_destroy(page);
  return status;
}

/* ---- */

static const struct {
  const char *name;
  wn_status (*run)(wn_context *ctx);
} cases[] = {{"models", case_models},
             {"sessions", case_sessions},
             {"generation", case_generation},
             {"encoder-decoder", case_encoder_decoder},
             {"attention", case_attention},
             {"tokenizers", case_tokenizers},
             {"chat", case_chat},
             {"imports", case_imports},
             {"data", case_data},
             {"training", case_training},
             {"adapting", case_adapting},
             {"evaluation", case_evaluation},
             {"pruning", case_pruning},
             {"analysis", case_analysis},
             {"report", case_report}};

/* In a context of its own, whose creation may fail too. */
static wn_status run(wn_status (*what)(wn_context *), char *error, size_t bytes) {
  wn_context *ctx = NULL;
  wn_status status = wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 1}, &ctx);
  if (status == WN_OK) status = what(ctx);
  snprintf(error, bytes, "%s", ctx ? wn_context_error(ctx) : "no context");
  wn_context_destroy(ctx);
  return status;
}

static unsigned long long live(void) {
  wn_memory_info info;
  wn_memory_info_get(&info);
  return info.live_allocations;
}

static void test_each_allocation(void **state) {
  const int n = (int)(intptr_t)*state;
  char error[2048];
  if (SANITIZED && cases[n].run == case_report) skip();
  fail_at = 0;
  for (int i = 0; i < 2; i++) { /* twice: libraries keep memory from their first use */
    allocations = 0;
    if (run(cases[n].run, error, sizeof error) != WN_OK) fail_msg("%s: %s", cases[n].name, error);
  }
  const long all = allocations, stride = getenv("WINNOW_TEST_ALL") || all < PLACES ? 1 : all / PLACES;
  const char *from = getenv("WINNOW_TEST_FROM");
  assert_true(all > 4);
  long ignored = 0;
  for (long at = from ? atol(from) : 1 + n % stride; at <= all; at += stride) {
    const unsigned long long before = live();
    fail_at = at, allocations = 0, json_failed = 0;
    const wn_status status = run(cases[n].run, error, sizeof error);
    fail_at = 0;
    if (live() != before)
      fail_msg("%s: allocation %ld fails: %lld are left", cases[n].name, at, (long long)(live() - before));
    if (status == WN_OK && !json_failed)
      ignored++, print_message("%s: allocation %ld of %ld: nobody minds\n", cases[n].name, at, all);
    else if (status != WN_ERR_MEMORY && !json_failed)
      fail_msg("%s: allocation %ld of %ld fails: %s: %s", cases[n].name, at, all, wn_status_name(status), error);
  }
  assert_int_equal(ignored, 0);
  fail_at = 0;
  if (run(cases[n].run, error, sizeof error) != WN_OK) fail_msg("%s, afterwards: %s", cases[n].name, error);
}

static int prepare(void **state) {
  char error[2048];
  (void)state;
  tiny_folder(folder);
  if (run(files, error, sizeof error) == WN_OK) return 0;
  print_message("%s\n", error);
  return -1;
}
static int clear(void **state) {
  (void)state;
  tiny_remove(folder);
  return 0;
}

int main(void) {
  enum { CASES = sizeof cases / sizeof *cases };
  struct CMUnitTest tests[CASES];
  json_set_alloc_funcs(failing_malloc, free);
  for (int i = 0; i < CASES; i++)
    tests[i] = (struct CMUnitTest){
        .name = cases[i].name, .test_func = test_each_allocation, .initial_state = (void *)(intptr_t)i};
  return cmocka_run_group_tests(tests, prepare, clear);
}
