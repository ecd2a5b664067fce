/* A run over a file of questions with written answers: what is shared by its passes (answers.c, answers_write.c). */
#ifndef WN_EVAL_ANSWERS_RUN_H
#define WN_EVAL_ANSWERS_RUN_H

#include "eval/answers.h"
#include "eval/log.h"
#include "winnow/generate.h"

/* The numbers of an answer; they are saved in this order. */
enum {
  WN_ANSWER_SCORE,
  WN_ANSWER_PROMPT_TOKENS,
  WN_ANSWER_CONTEXT_TOKENS,
  WN_ANSWER_TOKENS,
  WN_ANSWER_CONTEXT_KEPT, /* tokens that a layer holds; 0 without a context */
  WN_ANSWER_KEPT,
  WN_ANSWER_CACHE_PEAK, /* bytes */
  WN_ANSWER_CACHE_FINAL,
  WN_ANSWER_FIRST_SECONDS,
  WN_ANSWER_SECONDS,
  WN_ANSWER_NUMBERS
};

struct wn_answer {
  bool done;
  double numbers[WN_ANSWER_NUMBERS];
};

struct wn_answer_line {
  int task;
  uint64_t line; /* of the file */
  bool shares;   /* it has the context of the line before */
};

/* The answers under one setting of the budgets. */
struct wn_answers_column {
  const wn_budgets *budgets; /* NULL: nothing is evicted */
  const char *save;          /* NULL: none */
  struct wn_answer *all;     /* [count] */
  struct wn_eval_log log;
  wn_answers_result *r;
};

struct wn_answers {
  wn_context *ctx;
  wn_model *model;
  const wn_answers_options *o;
  struct wn_answers_column *columns; /* [column_count] */
  int column_count;
  struct wn_answer_line *all; /* [count] */
  int64_t count;              /* lines taken */
  size_t room;                /* of the array */
  uint64_t done, total;       /* answers, of all columns */
  char **tasks;               /* [task_count] names, in the order of the file */
  int64_t *task_lines;        /* [task_count] */
  int task_count;
  char fingerprint[24]; /* of the lines */
  char prompt[24];      /* of the first prompt's tokens: another tokenizer or template makes others */
};

/* Answers what is open (answers_write.c). */
wn_status wn_answers_write(struct wn_answers *a);
/* The names of the numbers in a file, and the answer of a line, whose numbers are known, to it (answers_saved.c). */
extern const char *const wn_answer_names[WN_ANSWER_NUMBERS];
wn_status wn_answers_save(struct wn_answers *a, struct wn_answers_column *column, const struct wn_sample *s,
                          const char *text, wn_generate_end end);

#endif
