/* Runs in a folder: interrupted and resumed gives the same bits as uninterrupted; refusals; the log. */
#include "tiny.h"
#include "policies.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

#include "train/runlog.h"

struct stop {
  wn_context *ctx;
  int64_t at;
  int64_t seen;
  bool evaluated, saved;
};

static void on_progress(void *user, const wn_train_progress *p) {
  struct stop *s = user;
  s->seen = p->step;
  s->evaluated |= p->evaluated;
  s->saved |= p->saved;
  if (p->step == s->at) wn_context_cancel(s->ctx);
}

static const char *backend = "cpu";

/* Trains in its own context. Stops after step `at` unless that is 0. */
static wn_status train(const wn_recipe *r, const char *dir, bool resume, int64_t at, struct stop *out) {
  struct stop s = {.ctx = tiny_context(backend, 1), .at = at};
  wn_status status = wn_train_run(s.ctx, r, dir, resume, on_progress, &s);
  if (status != WN_OK && status != WN_ERR_CANCELLED) print_message("%s\n", wn_context_error(s.ctx));
  wn_context_destroy(s.ctx);
  if (out) *out = s;
  return status;
}

static void same_run(const char *a, const char *b) {
  assert_true(tiny_same_file(a, b, "model.safetensors"));
  assert_true(tiny_same_file(a, b, "optimizer.safetensors"));
  assert_true(tiny_same_file(a, b, "config.json"));
  assert_true(tiny_same_file(a, b, "state.json"));
}

/* Every line of the log is an object, steps count from 1, and loss[i] gets the loss of step i. */
static int read_log(const char *dir, double *loss, int most) {
  char *text = tiny_read(dir, "log.jsonl", NULL), *at = text;
  assert_non_null(text);
  int n = 0;
  for (char *end; (end = strchr(at, '\n')); at = end + 1) {
    json_error_t error;
    json_t *j = json_loadb(at, (size_t)(end - at), 0, &error);
    if (!j) fail_msg("%s: line %d: %s", dir, n + 1, error.text);
    assert_int_equal(json_integer_value(json_object_get(j, "step")), n + 1);
    assert_true(n < most);
    loss[n++] = json_number_value(json_object_get(j, "loss"));
    json_decref(j);
  }
  assert_int_equal(*at, 0);
  free(text);
  return n;
}

static void resume_equals(wn_recipe *r) {
  char a[256], b[256], path_a[300], path_b[300];
  tiny_folder(a), tiny_folder(b);
  snprintf(path_a, sizeof path_a, "%s/run", a);
  snprintf(path_b, sizeof path_b, "%s/run", b);
  struct stop s;
  assert_int_equal(train(r, path_a, false, 0, &s), WN_OK);
  assert_int_equal(s.seen, 6);
  assert_true(s.saved);
  assert_int_equal(train(r, path_b, false, 2, &s), WN_ERR_CANCELLED);
  assert_int_equal(s.seen, 2);
  assert_int_equal(train(NULL, path_b, true, 5, &s), WN_ERR_CANCELLED);
  assert_int_equal(s.seen, 5);
  assert_int_equal(train(r, path_b, true, 0, &s), WN_OK);
  assert_int_equal(s.seen, 6);
  same_run(path_a, path_b);
  double la[8], lb[8];
  assert_int_equal(read_log(path_a, la, 8), 6);
  assert_int_equal(read_log(path_b, lb, 8), 6);
  assert_memory_equal(la, lb, 6 * sizeof *la);
  /* Resuming a finished run changes nothing. */
  assert_int_equal(train(NULL, path_b, true, 0, NULL), WN_OK);
  same_run(path_a, path_b);
  tiny_remove(a), tiny_remove(b);
}

static void test_resume(void **state) {
  (void)state;
  wn_recipe r;
  tiny_recipe(&r, true);
  r.model.dropout = 0.1;
  r.train.schedule = WN_SCHED_COSINE;
  resume_equals(&r);
  tiny_recipe(&r, false);
  r.train.optimizer = WN_OPT_ADAGRAD;
  r.train.accumulate = 2;
  r.train.clip_tensor = 0.03;
  r.train.save_every = 4;
  resume_equals(&r);
  tiny_recipe(&r, true);
  r.train.optimizer = WN_OPT_MUON;
  r.model.attention.selective.bilinear = true; /* a mechanism's matrices */
  resume_equals(&r);
}

/* A run with selective attention that is resumed with L_mem from step 3 on equals one that had L_mem.from_step 3 from
 * the beginning. Long sequences under budgets: both leave out keys that no row sees. */
static void resume_with_mem(int64_t length, bool budgets, double tau) {
  wn_recipe plain, with;
  char dir[256], a[300], b[300];
  double la[8], lb[8];
  tiny_folder(dir);
  snprintf(a, sizeof a, "%s/a", dir);
  snprintf(b, sizeof b, "%s/b", dir);
  tiny_recipe(&plain, true);
  plain.data.max_length = length;
  if (budgets) snprintf(plain.train.prune.budgets, sizeof plain.train.prune.budgets, "32");
  with = plain;
  with.model.attention.selective.mem.enabled = true;
  with.model.attention.selective.mem.eps = 0.3;
  with.model.attention.selective.mem.tau = tau;
  with.train.mem.from_step = 3;
  assert_int_equal(train(&with, a, false, 0, NULL), WN_OK);
  assert_int_equal(train(&plain, b, false, 3, NULL), WN_ERR_CANCELLED);
  assert_int_equal(train(&with, b, true, 0, NULL), WN_OK);
  same_run(a, b);
  assert_true(tiny_same_file(a, b, "recipe.json"));
  assert_int_equal(read_log(a, la, 8), 6);
  assert_int_equal(read_log(b, lb, 8), 6);
  assert_memory_equal(la, lb, 6 * sizeof *la);
  tiny_remove(dir);
}

/* A resumed run that is interrupted before its first step keeps the recipe that it was given. */
static void test_resume_interrupted(void **state) {
  (void)state;
  wn_recipe r, kept;
  char dir[256], run[300], path[320];
  tiny_folder(dir);
  snprintf(run, sizeof run, "%s/run", dir);
  snprintf(path, sizeof path, "%s/recipe.json", run);
  tiny_recipe(&r, true);
  assert_int_equal(train(&r, run, false, 3, NULL), WN_ERR_CANCELLED);
  r.train.lr /= 2;
  struct stop s = {.ctx = tiny_context(backend, 1)};
  wn_context_cancel(s.ctx);
  assert_int_equal(wn_train_run(s.ctx, &r, run, true, on_progress, &s), WN_ERR_CANCELLED);
  assert_int_equal(s.seen, 0);
  must(s.ctx, wn_recipe_load(s.ctx, path, NULL, 0, &kept));
  assert_true(kept.train.lr == r.train.lr);
  wn_context_destroy(s.ctx);
  assert_int_equal(train(NULL, run, true, 0, NULL), WN_OK);
  tiny_remove(dir);
}

/* L_mem needs selections: without any, a warning. */
static void test_mem_without_selections(void **state) {
  (void)state;
  wn_recipe r;
  char dir[256], run[300];
  tiny_folder(dir);
  snprintf(run, sizeof run, "%s/run", dir);
  tiny_recipe(&r, false);
  r.model.attention.selective.enabled = false;
  assert_int_equal(train(&r, run, false, 3, NULL), WN_ERR_CANCELLED);
  r.model.attention.selective.mem.enabled = true;
  assert_int_equal(train(&r, run, true, 0, NULL), WN_ERR_CONFIG);
  assert_int_equal(train(NULL, run, true, 0, NULL), WN_OK);
  tiny_remove(dir);
}

static void test_resume_with_mem(void **state) {
  (void)state;
  resume_with_mem(6, false, 1);
  resume_with_mem(160, true, 1);
  resume_with_mem(160, false, 60);
}

static json_t *read_json(const char *dir, const char *name) {
  char *text = tiny_read(dir, name, NULL);
  json_t *j = text ? json_loads(text, 0, NULL) : NULL;
  free(text);
  return j;
}

/* Budgets that a training no longer uses are removed from beside its checkpoint. Those that a search has put there
 * stay. */
static void test_budgets_dropped(void **state) {
  (void)state;
  static const char searched[] = "{\"policy\": \"selective\", \"tokens\": [5, 5]}";
  char dir[256], run[300], path[320];
  wn_recipe r;
  tiny_recipe(&r, true);
  tiny_folder(dir);
  snprintf(run, sizeof run, "%s/run", dir);
  snprintf(path, sizeof path, "%s/budgets.json", run);
  snprintf(r.train.prune.budgets, sizeof r.train.prune.budgets, "3");
  assert_int_equal(train(&r, run, false, 2, NULL), WN_ERR_CANCELLED);
  assert_true(wn_path_exists(path));
  r.train.prune.budgets[0] = 0;
  assert_int_equal(train(&r, run, true, 3, NULL), WN_ERR_CANCELLED);
  assert_false(wn_path_exists(path));
  must(NULL, wn_file_write(NULL, path, searched, strlen(searched)));
  assert_int_equal(train(&r, run, true, 0, NULL), WN_OK);
  assert_true(wn_path_exists(path));
  tiny_remove(dir);
}

/* Training under falling budgets: resuming gives the same bits; the current budgets are stored with the checkpoint; a
 * new run starts from its parameters with other losses, a fresh optimizer and budgets from a file. */
static void test_budgets(void **state) {
  (void)state;
  wn_recipe r;
  tiny_recipe(&r, true);
  snprintf(r.train.prune.budgets, sizeof r.train.prune.budgets, "3");
  r.train.prune.from_step = 1, r.train.prune.to_step = 5;
  resume_equals(&r);
  r.train.prune.draw = true;
  resume_equals(&r);
  r.train.prune.draw = false;
  r.train.prune.policy = WN_POLICY_TOVA;
  resume_equals(&r);
  r.train.prune.policy = WN_POLICY_SELECTIVE;

  char dir[256], first[300], second[300], third[300];
  double free_loss[8], loss[8], again[8];
  tiny_folder(dir);
  snprintf(first, sizeof first, "%s/first", dir);
  snprintf(second, sizeof second, "%s/second", dir);
  snprintf(third, sizeof third, "%s/third", dir);
  assert_int_equal(train(&r, first, false, 0, NULL), WN_OK);
  assert_int_equal(read_log(first, loss, 8), 6);
  json_t *budgets = read_json(first, "budgets.json");
  assert_non_null(budgets);
  assert_int_equal(json_integer_value(json_array_get(json_object_get(budgets, "tokens"), 0)), 3);
  json_decref(budgets);
  r.train.prune.budgets[0] = 0;
  assert_int_equal(train(&r, second, false, 0, NULL), WN_OK);
  assert_int_equal(read_log(second, free_loss, 8), 6);
  assert_true(free_loss[0] == loss[0] && free_loss[5] != loss[5]);
  assert_null(read_json(second, "budgets.json"));

  snprintf(r.train.init, sizeof r.train.init, "%s", first);
  snprintf(r.train.prune.budgets, sizeof r.train.prune.budgets, "%s", first);
  r.train.prune.from_step = r.train.prune.to_step = 0;
  r.model.attention.selective.mem.enabled = true;
  assert_int_equal(train(&r, third, false, 0, NULL), WN_OK);
  assert_int_equal(read_log(third, again, 8), 6);
  assert_true(again[0] != loss[0]);
  budgets = read_json(third, "budgets.json");
  assert_non_null(budgets);
  json_decref(budgets);
  /* With learning rate 0 it stays the other's model. */
  tiny_remove(third);
  r.train.lr = 0;
  assert_int_equal(train(&r, third, false, 0, NULL), WN_OK);
  assert_true(tiny_same_file(first, third, "model.safetensors"));
  tiny_remove(third);
  r.model.width *= 2, r.model.head_size = 0;
  wn_context *ctx = tiny_context("cpu", 1);
  assert_int_equal(wn_train_run(ctx, &r, third, false, NULL, NULL), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "another shape"));
  wn_context_destroy(ctx);
  tiny_remove(dir);
}

/* The cache of segment recurrence is state as well. Streams end and restart after four steps. Evaluations in between
 * have their own. */
static void test_resume_streams(void **state) {
  (void)state;
  char dir[256];
  tiny_folder(dir);
  wn_recipe r;
  tiny_recipe(&r, false);
  r.data.kind = WN_DATA_TOKENS;
  snprintf(r.data.train, sizeof r.data.train, "%s/train.bin", dir);
  snprintf(r.data.val, sizeof r.data.val, "%s/train.bin", dir);
  enum { COUNT = 2 * 2 * 4 * 8 + 1 };
  int32_t ids[COUNT];
  for (int i = 0; i < COUNT; i++) ids[i] = (i * i / 3 + i) % 11;
  wn_context *ctx = tiny_context("ref", 1);
  must(ctx, wn_token_file_write(ctx, r.data.train, "llmc", 11, ids, COUNT));
  wn_context_destroy(ctx);
  r.data.stream = true;
  r.model.vocab_size = 11;
  r.model.context = 8;
  r.model.position = WN_POS_ROPE;
  r.model.recurrence = 11;
  r.train.batch = 2;
  r.train.accumulate = 2;
  backend = "ref";
  resume_equals(&r);
  r.model.attention.selective.enabled = true; /* what was selected is state as well */
  resume_equals(&r);
  double plain[8], evaluated[8];
  for (int every = 0; every < 3; every += 2) {
    char path[300];
    snprintf(path, sizeof path, "%s/run%d", dir, every);
    r.train.eval_every = every;
    assert_int_equal(train(&r, path, false, 0, NULL), WN_OK);
    assert_int_equal(read_log(path, every ? evaluated : plain, 8), 6);
  }
  assert_memory_equal(plain, evaluated, 6 * sizeof *plain);
  backend = "cpu";
  tiny_remove(dir);
}

/* Spans are learned and the recurrence follows them: rooms for 128 of 256 tokens, filled by five blocks. */
static void test_resume_spans(void **state) {
  (void)state;
  char dir[256];
  tiny_folder(dir);
  wn_recipe r;
  tiny_recipe(&r, false);
  r.data.kind = WN_DATA_TOKENS;
  snprintf(r.data.train, sizeof r.data.train, "%s/train.bin", dir);
  enum { COUNT = 2 * 8 * 32 + 1 };
  int32_t ids[COUNT];
  for (int i = 0; i < COUNT; i++) ids[i] = (i * i / 3 + i) % 11;
  wn_context *ctx = tiny_context("ref", 1);
  must(ctx, wn_token_file_write(ctx, r.data.train, "llmc", 11, ids, COUNT));
  wn_context_destroy(ctx);
  r.data.stream = true;
  r.model.vocab_size = 11;
  r.model.context = 32;
  r.model.position = WN_POS_ROPE;
  r.model.recurrence = 256;
  r.model.attention.span.enabled = true;
  r.model.attention.span.limit = 256;
  r.model.attention.span.init = 0.1;
  r.train.batch = 2;
  r.train.lr = 0.02;
  for (int selective = 0; selective < 2; selective++) {
    r.model.attention.selective.enabled = selective;
    resume_equals(&r);
  }
  char path[300];
  snprintf(path, sizeof path, "%s/run", dir);
  assert_int_equal(train(&r, path, false, 0, NULL), WN_OK);
  wn_safetensors *file = NULL;
  ctx = tiny_context("ref", 1);
  snprintf(path, sizeof path, "%s/run/optimizer.safetensors", dir);
  must(ctx, wn_safetensors_open(ctx, path, &file));
  const wn_safetensors_entry *e = wn_safetensors_find(file, "memory.0.1"),
                             *n = wn_safetensors_find(file, "memory.counts");
  assert_true(e && n && e->shape[1] == 128 + 32);
  int32_t counts[2];
  memcpy(counts, n->data, sizeof counts);
  assert_int_equal(counts[1], 128);
  wn_safetensors_close(file);
  char *log;
  snprintf(path, sizeof path, "%s/run", dir);
  log = tiny_read(path, "log.jsonl", NULL);
  assert_non_null(strstr(log, "\"span\":25.6"));
  free(log);
  /* Counts that do not fit the rooms are refused. */
  snprintf(path, sizeof path, "%s/run", dir);
  size_t bytes;
  char *moments = tiny_read(path, "optimizer.safetensors", &bytes);
  const int32_t wrong = 193;
  size_t at = 0;
  for (size_t i = 0; i + 8 <= bytes && !at; i++)
    if (!memcmp(moments + i, counts, sizeof counts)) at = i;
  assert_true(at > 0);
  memcpy(moments + at, &wrong, sizeof wrong);
  snprintf(path, sizeof path, "%s/run/optimizer.safetensors", dir);
  must(ctx, wn_file_write(ctx, path, moments, bytes));
  free(moments);
  wn_context_destroy(ctx);
  snprintf(path, sizeof path, "%s/run", dir);
  assert_int_equal(train(NULL, path, true, 0, NULL), WN_ERR_FORMAT);
  tiny_remove(dir);
}

static void test_evaluation(void **state) {
  (void)state;
  char dir[256], path[300];
  tiny_folder(dir);
  snprintf(path, sizeof path, "%s/run", dir);
  wn_recipe r;
  tiny_recipe(&r, true);
  r.train.eval_every = 4;
  r.train.eval_batches = 2;
  struct stop s;
  assert_int_equal(train(&r, path, false, 0, &s), WN_OK);
  assert_true(s.evaluated);
  char *log = tiny_read(path, "log.jsonl", NULL);
  int found = 0;
  for (char *at = log; (at = strstr(at, "\"val_loss\":")); at++) found++;
  assert_int_equal(found, 2); /* step 4, and step 6 as the last */
  free(log);
  tiny_remove(dir);
}

/* A step's parts may be shorter than the recipe's batch. Evaluations see the same sequences. */
static void test_evaluation_of_parts(void **state) {
  (void)state;
  char dir[256], run[300];
  double loss[2] = {0};
  tiny_folder(dir);
  for (int parts = 0; parts < 2; parts++) {
    wn_recipe r;
    tiny_recipe(&r, false);
    r.train.steps = r.train.eval_every = 1, r.train.eval_batches = 2, r.train.lr = 0;
    r.train.batch = 4, r.train.accumulate = 3, r.train.shards = 4 * parts; /* 8 sequences: 4 + 4, or 3 + 3 + 2 */
    snprintf(run, sizeof run, "%s/%d", dir, parts);
    assert_int_equal(train(&r, run, false, 0, NULL), WN_OK);
    wn_context *ctx = tiny_context("cpu", 1);
    wn_train_log log;
    must(ctx, wn_train_log_load(ctx, run, &log));
    loss[parts] = log.val_loss[0];
    wn_train_log_clear(&log);
    wn_context_destroy(ctx);
  }
  if (!(fabs(loss[0] - loss[1]) < 1e-6)) fail_msg("validation loss %.9g, in parts %.9g", loss[0], loss[1]);
  tiny_remove(dir);
}

struct interrupt {
  wn_context *ctx;
  long after; /* milliseconds */
};

static void *interrupt(void *user) {
  const struct interrupt *i = user;
  nanosleep(&(struct timespec){i->after / 1000, i->after % 1000 * 1000000}, NULL);
  wn_context_cancel(i->ctx);
  return NULL;
}

/* Resumes (or starts) the run until an interrupt arrives during step `step`'s evaluation, which takes minutes. If it
 * came too early, tries again with a longer delay. */
static void interrupt_evaluation(wn_recipe r, const char *dir, int64_t step) {
  int64_t saved = 0;
  r.train.eval_batches = 1000000;
  for (long delay = 20; saved < step && delay < 60000; delay *= 2) {
    struct stop s = {.ctx = tiny_context(backend, 1)};
    struct interrupt later = {s.ctx, delay};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, interrupt, &later), 0);
    assert_int_equal(wn_train_run(s.ctx, &r, dir, wn_train_can_resume(dir), on_progress, &s), WN_ERR_CANCELLED);
    pthread_join(thread, NULL);
    assert_false(s.evaluated);
    json_t *j = read_json(dir, "state.json");
    saved = json_integer_value(json_object_get(j, "step"));
    json_decref(j);
    wn_context_destroy(s.ctx);
  }
  assert_int_equal(saved, step);
}

static void same_evaluations(const char *a, const char *b) {
  wn_context *ctx = tiny_context("cpu", 1);
  wn_train_log x, y;
  must(ctx, wn_train_log_load(ctx, a, &x));
  must(ctx, wn_train_log_load(ctx, b, &y));
  assert_int_equal(x.count, y.count);
  for (int64_t i = 0; i < x.count; i++) {
    assert_true(x.step[i] == y.step[i] && x.loss[i] == y.loss[i]);
    if (isnan(x.val_loss[i]) != isnan(y.val_loss[i]) || x.val_loss[i] < y.val_loss[i] || x.val_loss[i] > y.val_loss[i])
      fail_msg("step %g: validation loss %g, expected %g", x.step[i], y.val_loss[i], x.val_loss[i]);
  }
  wn_train_log_clear(&x), wn_train_log_clear(&y);
  wn_context_destroy(ctx);
}

/* An interrupted evaluation, during a run or at its end, is repeated once when the run is resumed. The log equals that
 * of an uninterrupted run. */
static void test_evaluation_interrupted(void **state) {
  (void)state;
  char dir[256], a[300], b[300];
  tiny_folder(dir);
  snprintf(a, sizeof a, "%s/a", dir);
  snprintf(b, sizeof b, "%s/b", dir);
  wn_recipe r;
  tiny_recipe(&r, true);
  r.train.steps = 4, r.train.eval_every = 2, r.train.eval_batches = 2, r.train.log_every = 4;
  struct stop s;
  assert_int_equal(train(&r, a, false, 0, NULL), WN_OK);
  interrupt_evaluation(r, b, 2);
  assert_int_equal(train(&r, b, true, 3, &s), WN_ERR_CANCELLED);
  assert_true(s.evaluated && s.seen == 3);
  interrupt_evaluation(r, b, 4);
  interrupt_evaluation(r, b, 4); /* a second time, before anything else */
  assert_int_equal(train(&r, b, true, 0, &s), WN_OK);
  assert_true(s.evaluated);
  same_run(a, b);
  same_evaluations(a, b);
  assert_int_equal(train(NULL, b, true, 0, &s), WN_OK);
  assert_false(s.evaluated);
  same_evaluations(a, b);
  tiny_remove(dir);
}

static void test_model_is_no_run(void **state) {
  (void)state;
  static const char *const names[] = {"model.safetensors", "config.json"};
  char dir[256], copy[256], path[300];
  tiny_folder(dir), tiny_folder(copy);
  wn_recipe r;
  tiny_recipe(&r, false);
  wn_context *ctx = tiny_context("cpu", 1);
  wn_model *model = NULL;
  r.model.vocab_size = 20, r.model.context = 16;
  must(ctx, wn_model_create(ctx, &r.model, 1, &model));
  must(ctx, wn_model_save(ctx, model, NULL, dir));
  must(ctx, wn_model_save(ctx, model, NULL, copy));
  wn_model_destroy(model);
  for (int parts = 2; parts > 0; parts--) { /* both files; then only the configuration */
    assert_false(wn_train_can_resume(dir));
    const wn_recipe *const given[] = {NULL, &r};
    for (int i = 0; i < 2; i++) {
      assert_int_equal(wn_train_run(ctx, given[i], dir, true, NULL, NULL), WN_ERR_IO);
      assert_non_null(strstr(wn_context_error(ctx), "no checkpoint to resume from"));
      assert_non_null(strstr(wn_context_error(ctx), dir));
    }
    assert_int_equal(wn_train_run(ctx, &r, dir, false, NULL, NULL), WN_ERR_ARGUMENT);
    assert_non_null(strstr(wn_context_error(ctx), "holds a model"));
    for (int i = 2 - parts; i < 2; i++) assert_true(tiny_same_file(dir, copy, names[i]));
    snprintf(path, sizeof path, "%s/log.jsonl", dir);
    assert_int_not_equal(access(path, F_OK), 0); /* nothing was started */
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    remove(path);
  }
  wn_context_destroy(ctx);
  tiny_remove(dir), tiny_remove(copy);
}

/* A stranger's run folder with a link wherever a run writes, moves or removes a file by name. */
static void test_links(void **state) {
  (void)state;
  static const char *const names[] = {".next", ".commit", "log.jsonl"};
  char dir[256], outside[256], path[300], target[300];
  tiny_folder(outside);
  wn_recipe r;
  tiny_recipe(&r, false);
  r.train.steps = 2;
  snprintf(target, sizeof target, "%s/model.safetensors", outside);
  FILE *f = fopen(target, "w");
  assert_true(f && fputs("theirs", f) != EOF && fclose(f) == 0);
  for (int i = 0; i < 3; i++) {
    tiny_folder(dir);
    assert_int_equal(train(&r, dir, false, 0, NULL), WN_OK);
    r.train.steps = 4;
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    remove(path);
    assert_int_equal(symlink(i == 2 ? target : outside, path), 0);
    wn_context *ctx = tiny_context("cpu", 1);
    for (int resume = 0; resume < 2; resume++) {
      const wn_status status = wn_train_run(ctx, resume ? &r : NULL, dir, true, NULL, NULL);
      const char *error = wn_context_error(ctx);
      assert_int_equal(status, WN_ERR_IO);
      if (!strstr(error, path) || !strstr(error, "symbolic link")) fail_msg("%s: %s", names[i], error);
    }
    wn_context_destroy(ctx);
    r.train.steps = 2;
    char *text = tiny_read(outside, "model.safetensors", NULL);
    assert_string_equal(text ? text : "gone", "theirs");
    free(text);
    tiny_remove(dir);
  }
  tiny_remove(outside);
}

/* A folder from a stranger: each of its files is another file as well, which resuming must leave as it is. */
static void test_hard_links(void **state) {
  (void)state;
  char dir[256], outside[256], from[600], to[600];
  tiny_folder(dir), tiny_folder(outside);
  wn_recipe r;
  tiny_recipe(&r, false);
  r.train.steps = 3;
  assert_int_equal(train(&r, dir, false, 0, NULL), WN_OK);
  char *names[32], *before[32];
  size_t bytes[32];
  int count = 0;
  DIR *d = opendir(dir);
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));) {
    if (e->d_name[0] == '.') continue;
    assert_true(count < 32);
    names[count] = strdup(e->d_name);
    snprintf(from, sizeof from, "%s/%s", dir, e->d_name);
    snprintf(to, sizeof to, "%s/%s", outside, e->d_name);
    assert_int_equal(link(from, to), 0);
    before[count] = tiny_read(outside, e->d_name, &bytes[count]);
    assert_non_null(before[count++]);
  }
  closedir(d);
  assert_true(count >= 6);
  r.train.steps = 6;
  assert_int_equal(train(&r, dir, true, 0, NULL), WN_OK);
  for (int i = 0; i < count; i++) {
    size_t n;
    char *after = tiny_read(outside, names[i], &n);
    if (!after || n != bytes[i] || memcmp(after, before[i], n) != 0)
      fail_msg("%s outside the folder changed", names[i]);
    free(after), free(before[i]), free(names[i]);
  }
  double loss[8];
  assert_int_equal(read_log(dir, loss, 8), 6); /* nothing was lost with the link */
  tiny_remove(dir), tiny_remove(outside);
}

static void test_refusals(void **state) {
  (void)state;
  char dir[256], other[256];
  tiny_folder(dir), tiny_folder(other);
  wn_recipe r, changed;
  tiny_recipe(&r, false);
  r.train.steps = 2;
  assert_int_equal(train(NULL, dir, false, 0, NULL), WN_ERR_ARGUMENT);
  assert_int_equal(train(NULL, dir, true, 0, NULL), WN_ERR_IO); /* nothing to resume */
  assert_int_equal(train(&r, dir, true, 0, NULL), WN_ERR_IO);
  assert_int_equal(train(&r, dir, false, 0, NULL), WN_OK);
  assert_int_equal(train(&r, dir, false, 0, NULL), WN_ERR_ARGUMENT); /* has a run already */
  changed = r;
  changed.model.width = 48;
  assert_int_equal(train(&changed, dir, true, 0, NULL), WN_ERR_CONFIG);
  /* The key is named, also if one of the two configurations lacks it. */
  static const struct {
    const char *set, *why;
  } keys[] = {{"model.width=48", "model.width is 32, the recipe's 48"},
              {"model.dropout=0.1", "model.dropout is 0.0, the recipe's 0.1"},
              {"model.embed_scale=2", "model.embed_scale is not set, the recipe's 2.0"},
              {"model.attention.gate=head", "model.attention.gate is not set, the recipe's \"head\""},
              {"model.init.q=normal 1", "model.init.q is not set, the recipe's \"normal 1\""},
              {"model.attention.span.enabled=true", "model.attention.span.enabled is false, the recipe's true"}};
  wn_context *told = tiny_context("cpu", 1);
  char kept[300];
  snprintf(kept, sizeof kept, "%s/recipe.json", dir);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    must(told, wn_recipe_load(told, kept, &keys[i].set, 1, &changed));
    assert_int_equal(wn_train_run(told, &changed, dir, true, NULL, NULL), WN_ERR_CONFIG);
    if (!strstr(wn_context_error(told), keys[i].why))
      fail_msg("%s: \"%s\", expected %s", keys[i].set, wn_context_error(told), keys[i].why);
  }
  wn_context_destroy(told);
  changed = r;
  changed.train.seed++;
  assert_int_equal(train(&changed, dir, true, 0, NULL), WN_ERR_CONFIG);
  changed = r;
  changed.train.optimizer = WN_OPT_ADAGRAD;
  assert_int_equal(train(&changed, dir, true, 0, NULL), WN_ERR_CONFIG);
  changed.train.optimizer = WN_OPT_MUON;
  assert_int_equal(train(&changed, dir, true, 0, NULL), WN_ERR_CONFIG);
  /* One process in a folder at a time. */
  wn_context *ctx = tiny_context("cpu", 1);
  struct wn_run_log lock;
  must(ctx, wn_run_log_open(ctx, dir, &lock));
  assert_int_equal(train(NULL, dir, true, 0, NULL), WN_ERR_IO);
  wn_run_log_close(&lock);
  /* With more steps than before, the run continues from its last. */
  changed = r;
  changed.train.steps = 4;
  assert_int_equal(train(&changed, dir, true, 0, NULL), WN_OK);
  /* Files of two runs are not mixed. */
  r.train.seed = 99;
  assert_int_equal(train(&r, other, false, 0, NULL), WN_OK);
  char from[300], to[300];
  snprintf(from, sizeof from, "%s/model.safetensors", other);
  snprintf(to, sizeof to, "%s/model.safetensors", dir);
  assert_int_equal(rename(from, to), 0);
  assert_int_equal(train(NULL, dir, true, 0, NULL), WN_ERR_FORMAT);
  wn_context_destroy(ctx);
  tiny_remove(dir), tiny_remove(other);
}

/* A model trained without a tokenizer continues with the one that the recipe names, in a new run as in its own. */
static void test_tokenizer_named_later(void **state) {
  (void)state;
  char dir[256], first[300], second[300];
  wn_recipe r;
  tiny_folder(dir);
  snprintf(first, sizeof first, "%s/first", dir);
  snprintf(second, sizeof second, "%s/second", dir);
  tiny_recipe(&r, false);
  r.model.vocab_size = 256;
  r.train.steps = 1;
  assert_int_equal(train(&r, first, false, 0, NULL), WN_OK);
  assert_false(wn_path_has(first, "tokenizer.json"));
  snprintf(r.data.tokenizer, sizeof r.data.tokenizer, "bytes");
  snprintf(r.train.init, sizeof r.train.init, "%s", first);
  assert_int_equal(train(&r, second, false, 0, NULL), WN_OK);
  assert_true(wn_path_has(second, "tokenizer.json"));
  r.train.init[0] = 0;
  r.train.steps = 2;
  assert_int_equal(train(&r, first, true, 0, NULL), WN_OK);
  assert_true(wn_path_has(first, "tokenizer.json"));
  /* From now on the run has its own copy, even if the original is gone. */
  snprintf(r.data.tokenizer, sizeof r.data.tokenizer, "%s/gone.model", dir);
  r.train.steps = 3;
  assert_int_equal(train(&r, first, true, 0, NULL), WN_OK);
  tiny_remove(dir);
}

/* A vocabulary so large that adding the sentinels would make it negative. */
static void test_hostile_vocabulary(void **state) {
  (void)state;
  static const char *const texts[] = {"{\"vocab_size\":9223372036854775807}", "{\"vocab_size\":16777217}",
                                      "{\"vocab_size\":0}", "{\"vocab_size\":\"many\"}", "{}"};
  char dir[256], out[300], path[300];
  wn_recipe r;
  wn_context *ctx = tiny_context("cpu", 1);
  tiny_folder(dir);
  snprintf(out, sizeof out, "%s/run", dir);
  tiny_recipe(&r, false);
  r.data.kind = WN_DATA_SPAN_CORRUPTION;
  r.data.sentinels = 8;
  r.data.input_length = 16;
  snprintf(r.data.train, sizeof r.data.train, "%s/train.bin", dir);
  r.model.encoder.layers = 1, r.model.encoder.context = 16;
  r.model.vocab_size = 64, r.model.context = 16;
  int32_t ids[200];
  for (int i = 0; i < 200; i++) ids[i] = i % 50;
  must(ctx, wn_token_file_write(ctx, r.data.train, "llmc", 56, ids, 200));
  snprintf(path, sizeof path, "%s/data.json", dir);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    must(ctx, wn_file_write(ctx, path, texts[i], strlen(texts[i])));
    assert_int_equal(wn_train_run(ctx, &r, out, false, NULL, NULL), WN_ERR_FORMAT);
    if (!strstr(wn_context_error(ctx), "data.json: \"vocab_size\" is missing or not a number from 1 to 16777216"))
      fail_msg("%s: %s", texts[i], wn_context_error(ctx));
  }
  must(ctx, wn_file_write(ctx, path, "{\"vocab_size\":56}", 17));
  must(ctx, wn_train_run(ctx, &r, out, false, NULL, NULL));
  wn_context_destroy(ctx);
  tiny_remove(dir);
}

/* A learning rate that makes the model diverge: the last good checkpoint stays. */
static void test_divergence(void **state) {
  (void)state;
  char dir[256];
  tiny_folder(dir);
  wn_recipe r;
  tiny_recipe(&r, false);
  r.train.steps = 40;
  r.train.warmup = 0;
  r.train.clip = 0;
  r.train.lr = 1e30;
  wn_context *ctx = tiny_context("cpu", 1);
  assert_int_equal(wn_train_run(ctx, &r, dir, false, NULL, NULL), WN_ERR_DIVERGED);
  assert_non_null(strstr(wn_context_error(ctx), "step 0 is kept"));
  wn_model *kept = NULL, *fresh = NULL;
  must(ctx, wn_model_load(ctx, dir, NULL, &kept));
  must(ctx, wn_model_create(ctx, wn_model_config_get(kept), r.train.seed, &fresh));
  for (int i = 0; i < wn_model_tensor_count(fresh); i++) {
    wn_safetensors_entry x, y;
    must(ctx, wn_model_tensor_at(kept, i, &x));
    must(ctx, wn_model_tensor_at(fresh, i, &y));
    assert_memory_equal(x.data, y.data, y.bytes);
  }
  wn_model_destroy(kept);
  wn_model_destroy(fresh);
  wn_context_destroy(ctx);
  tiny_remove(dir);
}

/* A log that ends inside a line, or is ahead of the checkpoint, is cut to the checkpoint's step. */
static void test_log(void **state) {
  (void)state;
  char dir[256], path[300];
  tiny_folder(dir);
  snprintf(path, sizeof path, "%s/log.jsonl", dir);
  FILE *f = fopen(path, "w");
  for (int s = 1; s <= 12; s++) fprintf(f, "{\"step\":%d,\"loss\":1}\n", s);
  fputs("{\"step\":13,\"lo", f);
  fclose(f);
  wn_context *ctx = tiny_context("cpu", 1);
  struct wn_run_log log;
  double loss[16];
  must(ctx, wn_run_log_open(ctx, dir, &log));
  must(ctx, wn_run_log_trim(ctx, &log, 100));
  assert_int_equal(read_log(dir, loss, 16), 12);
  must(ctx, wn_run_log_trim(ctx, &log, 9));
  wn_train_progress p = {.step = 10, .loss = 2.5};
  must(ctx, wn_run_log_append(ctx, &log, &p));
  assert_int_equal(read_log(dir, loss, 16), 10);
  assert_true(loss[9] == 2.5);
  must(ctx, wn_run_log_trim(ctx, &log, 0));
  assert_int_equal(read_log(dir, loss, 16), 0);
  /* A resumed run's seconds count from the run's start, even if its first line comes late. */
  p = (wn_train_progress){.step = 1, .loss = 2.5, .seconds = 3, .lr = 0.25};
  must(ctx, wn_run_log_append(ctx, &log, &p));
  must(ctx, wn_run_log_trim(ctx, &log, 1));
  wn_train_progress lacks = {0};
  assert_false(wn_run_log_unevaluated(&log, 2, &lacks));
  assert_true(wn_run_log_unevaluated(&log, 1, &lacks) && lacks.loss == 2.5 && lacks.lr == 0.25);
  p.evaluated = true, p.val_loss = 1.5, p.val_accuracy = 0.5, p.val_loss_rows.error = 0.25;
  must(ctx, wn_run_log_complete(ctx, &log, &p));
  p = (wn_train_progress){.step = 2, .loss = 2, .seconds = 4};
  must(ctx, wn_run_log_append(ctx, &log, &p));
  wn_train_log columns;
  must(ctx, wn_train_log_load(ctx, dir, &columns));
  assert_int_equal(columns.count, 2);
  assert_true(columns.val_loss[0] == 1.5 && columns.val_accuracy[0] == 0.5 && isnan(columns.val_loss[1]));
  assert_true(columns.val_loss_stderr[0] == 0.25 && isnan(columns.val_loss_stderr[1]));
  assert_true(columns.seconds[0] == 3 && columns.seconds[1] == 7);
  wn_train_log_clear(&columns);
  must(ctx, wn_run_log_trim(ctx, &log, 1));
  assert_false(wn_run_log_unevaluated(&log, 1, &lacks));
  wn_run_log_close(&log);
  wn_context_destroy(ctx);
  tiny_remove(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_model_is_no_run),
                                     cmocka_unit_test(test_links),
                                     cmocka_unit_test(test_hard_links),
                                     cmocka_unit_test(test_log),
                                     cmocka_unit_test(test_resume),
                                     cmocka_unit_test(test_resume_streams),
                                     cmocka_unit_test(test_budgets),
                                     cmocka_unit_test(test_budgets_dropped),
                                     cmocka_unit_test(test_resume_with_mem),
                                     cmocka_unit_test(test_resume_interrupted),
                                     cmocka_unit_test(test_mem_without_selections),
                                     cmocka_unit_test(test_resume_spans),
                                     cmocka_unit_test(test_evaluation),
                                     cmocka_unit_test(test_evaluation_of_parts),
                                     cmocka_unit_test(test_evaluation_interrupted),
                                     cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_tokenizer_named_later),
                                     cmocka_unit_test(test_hostile_vocabulary),
                                     cmocka_unit_test(test_divergence)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
