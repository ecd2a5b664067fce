/* For tests: a model over bytes, questions of every shape, and a folder for logs. */
#ifndef WN_TEST_EVAL_BENCH_H
#define WN_TEST_EVAL_BENCH_H

#include "model/models.h"
#include "support.h"
#include "winnow/task.h"

enum { V = 256, CONTEXT = 96 };

static wn_model *bytes_model(wn_context *ctx, wn_position_kind position) {
  const struct model_case k = {.position = position, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = V;
  c.context = CONTEXT;
  return model_of(ctx, &c, WN_F32);
}

static const char *const words[] = {"ab", "the cat sat", "x", "on a mat today", "b\xC3\xA4r", "no", "yes it is", "of"};

/* Questions of every shape: contexts of equal and unequal lengths, choices with the same beginning, a single choice,
 * spaces at the end. */
static SUPPORT_UNUSED void put_questions(const char *path, int count) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  for (int i = 0; i < count; i++) {
    const char *w = words[i % 8], *x = words[(i / 3 + 1) % 8];
    switch (i % 5) {
    case 0:
      fprintf(f, "{\"context\":\"%s %d:\",\"choices\":[\"%s\",\"y\"],\"gold\":%d}\n", w, i % 2, x, i % 2);
      break;
    case 1:
      fprintf(f, "{\"context\":\"q%s\",\"choices\":[\"the a\",\"the b\",\"the\"],\"gold\":%d}\n", w, i % 3);
      break;
    case 2:
      fprintf(f, "{\"contexts\":[\"so %s\",\"so %s\"],\"continuation\":\"%s\",\"gold\":0}\n", w, x, w);
      break;
    case 3:
      fprintf(f, "{\"context\":\"word %s\",\"continuation\":\"%s\"}\n\n", w, x);
      break;
    default:
      fprintf(f, "{\"context\":\"end  \",\"choices\":[\"%s\",\"z\"],\"gold\":1,\"delimiter\":\"\"}\n", w);
    }
  }
  assert_int_equal(fclose(f), 0);
}

struct bench {
  wn_context *ctx;
  wn_model *model;
  wn_tokenizer *tok;
  char dir[512], questions[600], log[600];
};
static void open_bench(struct bench *b, wn_position_kind position) {
  b->ctx = context_of("cpu", 1);
  b->model = bytes_model(b->ctx, position);
  assert_ok(b->ctx, wn_tokenizer_load(b->ctx, "bytes", &b->tok));
  make_folder(b->dir);
  snprintf(b->questions, sizeof b->questions, "%s/choices.jsonl", b->dir);
  snprintf(b->log, sizeof b->log, "%s/log.jsonl", b->dir);
}
static void close_bench(struct bench *b) {
  remove_folder(b->dir);
  wn_tokenizer_destroy(b->tok);
  wn_model_destroy(b->model);
  wn_context_destroy(b->ctx);
}
static SUPPORT_UNUSED wn_task_options options_of(const struct bench *b) {
  return (wn_task_options){
      .size = sizeof(wn_task_options), .tok = b->tok, .task = "choices", .path = b->questions, .log = b->log};
}

#endif
