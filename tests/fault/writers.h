/* The library's writers of files, for tests of errors, kills and crashes. Each writer has a state before it, one
 * generation of files, and replaces it with the next generation. */
#ifndef WN_TESTS_WRITERS_H
#define WN_TESTS_WRITERS_H

#include "fault/calls.h"
#include "fault/tree.h"

#include <jansson.h>

#include "base/file.h"
#include "io/folder.h"
#include "winnow/winnow.h"
#include "policies.h"

#define WRITERS_TRY(call)                                                                                              \
  do {                                                                                                                 \
    status = (call);                                                                                                   \
    if (status != WN_OK) goto done;                                                                                    \
  } while (0)

enum { WRITERS_VOCAB = 300, WRITERS_CONTEXT = 12 };
static char writers_root[256];

static const char *writers_in(const char *name) {
  static char paths[8][320];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", writers_root, name);
  return path;
}

static wn_status writers_model(wn_context *ctx, uint64_t seed, wn_model **out) {
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = WRITERS_VOCAB, c.context = WRITERS_CONTEXT, c.layers = 1, c.width = 16, c.heads = 2, c.kv_heads = 2;
  c.head_size = 8, c.ffn_width = 10, c.init_std = 0.3;
  c.position = seed % 2 ? WN_POS_ROPE : WN_POS_NONE; /* so that configurations differ, too */
  *out = NULL;
  return wn_model_create(ctx, &c, seed, out);
}

static wn_status writers_save(wn_context *ctx, uint64_t seed, bool with_tokenizer, const char *to) {
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  wn_status status;
  WRITERS_TRY(writers_model(ctx, seed, &model));
  if (with_tokenizer) WRITERS_TRY(wn_tokenizer_load(ctx, "bytes", &tok));
  WRITERS_TRY(wn_model_save(ctx, model, tok, writers_in(to)));
done:
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  return status;
}

/* ---- the cases: the state before, and the call ---- */

static wn_status save_before(wn_context *ctx) {
  wn_status status;
  WRITERS_TRY(writers_save(ctx, 1, true, "model"));
  /* A file of another tokenizer, which must disappear together with the old model. */
  WRITERS_TRY(wn_file_write(ctx, writers_in("model/tokenizer_config.json"), "{}\n", 3));
  WRITERS_TRY(wn_file_write(ctx, writers_in("model/README"), "mine\n", 5));
done:
  return status;
}
static wn_status save_run(wn_context *ctx) {
  return writers_save(ctx, 2, true, "model");
}
static wn_status save_new_run(wn_context *ctx) {
  return writers_save(ctx, 2, true, "deep/fresh");
}

static wn_status convert_to(wn_context *ctx, const char *from, const char *to, wn_convert_form format) {
  return wn_model_convert(ctx, from, writers_in(to),
                          &(wn_convert_options){.size = sizeof(wn_convert_options), .to = format, .overwrite = true},
                          NULL);
}
static wn_status convert_before(wn_context *ctx) {
  const wn_status status = writers_save(ctx, 1, true, "in");
  return status == WN_OK ? convert_to(ctx, WN_TEST_DIR "/golden/hf/llama", "converted", WN_CONVERT_HF) : status;
}
static wn_status convert_run(wn_context *ctx) {
  return convert_to(ctx, writers_in("in"), "converted", WN_CONVERT_WINNOW);
}
static wn_status gguf_before(wn_context *ctx) {
  const wn_status status = writers_save(ctx, 1, false, "in");
  return status == WN_OK ? convert_to(ctx, writers_in("in"), "model.gguf", WN_CONVERT_WINNOW_GGUF) : status;
}
static wn_status gguf_run(wn_context *ctx) {
  return convert_to(ctx, WN_TEST_DIR "/golden/hf/llama", "model.gguf", WN_CONVERT_GGUF);
}

static wn_status prepare_from(wn_context *ctx, const char *text) {
  wn_data_prepare_options o;
  wn_data_prepare_result r;
  const char *inputs[] = {writers_in(text)};
  wn_data_prepare_options_init(&o, sizeof o);
  o.inputs = inputs, o.input_count = 1, o.tokenizer = "bytes", o.out_dir = writers_in("data");
  o.document_break = "line", o.val_fraction = 0.3;
  return wn_data_prepare(ctx, &o, &r);
}
static wn_status prepare_before(wn_context *ctx) {
  char text[2][400];
  wn_status status;
  for (int i = 0; i < 399; i++) text[0][i] = "the cat sat\n"[i * 7 % 12], text[1][i] = "a dog stood\n"[i * 5 % 12];
  WRITERS_TRY(wn_file_write(ctx, writers_in("a.txt"), text[0], 399));
  WRITERS_TRY(wn_file_write(ctx, writers_in("b.txt"), text[1], 399));
  WRITERS_TRY(prepare_from(ctx, "a.txt"));
done:
  return status;
}
static wn_status prepare_run(wn_context *ctx) {
  return prepare_from(ctx, "b.txt");
}

static wn_status tokenizer_before(wn_context *ctx) {
  char text[6000];
  for (size_t i = 0; i < sizeof text; i++) text[i] = "the cat sat on a mat and the dog did not\n"[(i * i / 3 + i) % 41];
  wn_status status;
  WRITERS_TRY(wn_file_write(ctx, writers_in("corpus.txt"), text, sizeof text));
  WRITERS_TRY(wn_file_write(ctx, writers_in("tok.model"), "old", 3));
done:
  return status;
}
static wn_status tokenizer_run(wn_context *ctx) {
  wn_tokenizer_train_options o;
  const char *inputs[] = {writers_in("corpus.txt")};
  wn_tokenizer_train_options_init(&o, sizeof o);
  o.inputs = inputs, o.input_count = 1, o.output = writers_in("tok.model"), o.vocab_size = 300, o.kind = "bpe";
  o.threads = 1, o.byte_fallback = true;
  return wn_tokenizer_train(ctx, &o);
}

static wn_status train_to(wn_context *ctx, int64_t steps) {
  wn_recipe r;
  tiny_recipe(&r, true);
  r.model.layers = 1;
  r.train.steps = steps, r.train.batch = 2;
  return wn_train_run(ctx, &r, writers_in("run"), wn_train_can_resume(writers_in("run")), NULL, NULL);
}
static wn_status train_before(wn_context *ctx) {
  return train_to(ctx, 1);
}
static wn_status train_run(wn_context *ctx) {
  return train_to(ctx, 2);
}

static wn_status search_with(wn_context *ctx, int64_t steps) {
  wn_model *model = NULL;
  wn_prune_options o;
  wn_status status;
  WRITERS_TRY(wn_model_load(ctx, writers_in("in"), NULL, &model));
  wn_prune_options_init(&o, sizeof o);
  o.search = (wn_prune_data){.path = writers_in("a.bin"), .rows = 2};
  o.report = (wn_prune_data){.path = writers_in("b.bin"), .rows = 2};
  wn_policy_find(NULL, "window", &o.budgets.policy);
  o.step = 4, o.target = 1e30, o.max_steps = steps, o.memory = UINT64_C(1) << 30;
  WRITERS_TRY(wn_prune_search(ctx, model, &o, writers_in("search"), access(writers_in("search/search.json"), F_OK) == 0,
                              NULL, NULL, NULL));
done:
  wn_model_destroy(model);
  return status;
}
static wn_status search_before(wn_context *ctx) {
  int32_t tokens[120];
  for (int i = 0; i < 120; i++) tokens[i] = i * i % 251;
  wn_status status;
  WRITERS_TRY(writers_save(ctx, 1, true, "in"));
  WRITERS_TRY(wn_token_file_write(ctx, writers_in("a.bin"), "llmc", WRITERS_VOCAB, tokens, 120));
  WRITERS_TRY(wn_token_file_write(ctx, writers_in("b.bin"), "llmc", WRITERS_VOCAB, tokens + 7, 113));
  WRITERS_TRY(search_with(ctx, 1));
done:
  return status;
}
static wn_status search_run(wn_context *ctx) {
  return search_with(ctx, 0);
}

static wn_status budgets_save(wn_context *ctx, const char *text) {
  wn_model *model = NULL;
  wn_budgets budgets = {0};
  wn_status status;
  WRITERS_TRY(writers_model(ctx, 1, &model));
  budgets_init(&budgets);
  WRITERS_TRY(wn_budgets_parse(ctx, wn_model_config_get(model), text, &budgets));
  WRITERS_TRY(wn_budgets_save(ctx, &budgets, writers_in("budgets.json")));
done:
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  return status;
}
static wn_status budgets_before(wn_context *ctx) {
  return budgets_save(ctx, "4");
}
static wn_status budgets_run(wn_context *ctx) {
  return budgets_save(ctx, "7");
}

static wn_status report_before(wn_context *ctx) {
  static const char line[] = "{\"step\":1,\"loss\":2,\"val_loss\":3}\n";
  wn_status status;
  WRITERS_TRY(wn_make_dirs(ctx, writers_in("log")));
  WRITERS_TRY(wn_file_write(ctx, writers_in("log/log.jsonl"), line, sizeof line - 1));
  WRITERS_TRY(wn_file_write(ctx, writers_in("report.html"), "old</html>\n", 11));
done:
  return status;
}
static wn_status report_run(wn_context *ctx) {
  wn_report_options options;
  wn_report_options_init(&options, sizeof options);
  options.inputs = (const char *const[]){writers_in("log")}, options.input_count = 1;
  return wn_report_save(ctx, &options, writers_in("report.html"), NULL);
}

static const struct writer {
  const char *name;
  wn_status (*before)(wn_context *ctx);
  wn_status (*run)(wn_context *ctx);
  const char *dir, *files[8]; /* the files of a generation; dir "" is the root */
  bool varies;                /* files contain times: any whole file will do */
} writers[] = {
    {"save",
     save_before,
     save_run,
     "model",
     {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README"},
     false},
    {"save to a new folder",
     NULL,
     save_new_run,
     "deep/fresh",
     {"config.json", "model.safetensors", "tokenizer.json"},
     false},
    {"convert",
     convert_before,
     convert_run,
     "converted",
     {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"},
     false},
    {"convert to GGUF", gguf_before, gguf_run, "", {"model.gguf"}, false},
    {"data prepare",
     prepare_before,
     prepare_run,
     "data",
     {"train.bin", "val.bin", "data.json", "tokenizer.json"},
     false},
    {"tokenizer train", tokenizer_before, tokenizer_run, "", {"tok.model"}, false},
    {"train",
     train_before,
     train_run,
     "run",
     {"config.json", "recipe.json", "model.safetensors", "optimizer.safetensors", "state.json"},
     false},
    {"search", search_before, search_run, "search", {"search.json"}, true},
    {"budgets", budgets_before, budgets_run, "", {"budgets.json"}, false},
    {"report", report_before, report_run, "", {"report.html"}, true},
};
enum { WRITERS = sizeof writers / sizeof *writers };

static wn_status writers_call(wn_status (*what)(wn_context *), char *error, size_t bytes) {
  wn_context *ctx = NULL;
  wn_status status = WN_OK;
  if (bytes) *error = 0;
  if (!what) return WN_OK;
  status = wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 1}, &ctx);
  if (status == WN_OK) status = what(ctx);
  snprintf(error, bytes, "%s", ctx ? wn_context_error(ctx) : "no context");
  wn_context_destroy(ctx);
  return status;
}

/* Whether this is a whole file of its kind. */
static bool writers_whole(const char *name, const char *data, size_t bytes) {
  if (strstr(name, ".html")) return bytes > 8 && !memcmp(data + bytes - 8, "</html>\n", 8);
  json_t *json = json_loadb(data, bytes, 0, NULL);
  json_decref(json);
  return json != NULL;
}

/* The generation that a reader finds below root: 1 old, 2 new, 3 both; 0: a mixture, with the file's name in `bad`. */
static int writers_generation(const struct writer *w, const char *root, const struct tree *old, const struct tree *new,
                              char *bad, size_t bad_bytes) {
  int found = 3;
  for (int i = 0; i < 8 && w->files[i]; i++) {
    char dir[400], path[700], name[160];
    snprintf(dir, sizeof dir, "%s%s%s", root, *w->dir ? "/" : "", w->dir);
    snprintf(name, sizeof name, "%s%s%s", w->dir, *w->dir ? "/" : "", w->files[i]);
    if (wn_folder_file(NULL, path, sizeof path, dir, w->files[i]) != WN_OK) {
      snprintf(bad, bad_bytes, "%s cannot be looked for", name);
      return 0;
    }
    size_t bytes = 0;
    char *data = tiny_read("", path, &bytes);
    const struct tree_file *a = tree_find(old, name), *b = tree_find(new, name);
    const bool is_old = a ? data && bytes == a->bytes && !memcmp(data, a->data, bytes) : !data;
    bool is_new = b ? data && bytes == b->bytes && !memcmp(data, b->data, bytes) : !data;
    if (w->varies && data && !is_old && writers_whole(w->files[i], data, bytes)) is_new = true;
    const bool torn = data != NULL;
    free(data);
    const int here = (is_old ? 1 : 0) | (is_new ? 2 : 0);
    if (!(found & here)) {
      snprintf(bad, bad_bytes, "%s is %s", name, here == 1 ? "old" : here == 2 ? "new" : torn ? "torn" : "missing");
      return 0;
    }
    found &= here;
  }
  return found;
}

/* Makes the state before in writers_root and *old, and the state after, elsewhere, in *new. */
static void writers_begin(const struct writer *w, struct tree *old, struct tree *new) {
  char error[2048];
  tiny_folder(writers_root);
  if (writers_call(w->before, error, sizeof error) != WN_OK) fail_msg("%s, before: %s", w->name, error);
  tree_take(old, writers_root);
  if (writers_call(w->run, error, sizeof error) != WN_OK) fail_msg("%s: %s", w->name, error);
  tree_take(new, writers_root);
  tree_put(old, writers_root);
}
static void writers_end(struct tree *old, struct tree *new) {
  tree_clear(old);
  tree_clear(new);
  tiny_remove(writers_root);
}

#endif
