/* winnow: written answers. A model reads a context, then a question, writes an answer, and the answer is compared with
 * references: how RULER, LongBench and others score a cache under eviction. The files are JSON lines (docs/tasks.md).
 */
#ifndef WINNOW_ANSWERS_H
#define WINNOW_ANSWERS_H

#include "winnow/chat.h"
#include "winnow/estimate.h"
#include "winnow/model.h"

WN_EXPERIMENTAL_BEGIN

/* How an answer is scored, from 0 to 1. Upper and lower case are the same to all of them. */
typedef enum wn_scorer {
  WN_SCORER_ALL,     /* "all": the share of the references that occur in the answer (RULER's string_match_all) */
  WN_SCORER_ANY,     /* "any": 1 if one of them occurs in it (RULER's string_match_part) */
  WN_SCORER_EXACT,   /* "exact": 1 if it is one of them, without punctuation, articles and extra spaces (SQuAD) */
  WN_SCORER_F1,      /* "f1": F1 of the words so normalised, as often as they occur, the best over references (SQuAD,
                        LongBench's qa_f1) */
  WN_SCORER_ROUGE_L, /* "rouge-l": F1 of the longest common subsequence of words, letters and digits alone count (Lin
                        2004), the best over references */
  WN_SCORER_NUMBER /* "number": 1 if the last number in it is the last in one of them (GSM8K's, as evaluated leniently):
                      1,234.50 is 1234.5 */
} wn_scorer;
#define WN_SCORER_COUNT 6
const char *wn_scorer_name(wn_scorer scorer);          /* "?": there is none of that number */
bool wn_scorer_find(const char *name, wn_scorer *out); /* false: there is none of that name */
/* references [count], count at least 1; all texts UTF-8. */
wn_status wn_answer_score(wn_context *ctx, wn_scorer scorer, const char *answer, const char *const *references,
                          int count, double *score);

/* What is asked, and how. */
typedef struct wn_answers_options {
  size_t size; /* sizeof the struct (context.h) */
  const wn_tokenizer *tok;
  const char *path;        /* JSON lines, gzip if the name ends in .gz */
  int64_t limit;           /* only this many lines of each task, from the first on; 0: all */
  int64_t max_tokens;      /* of an answer, where the line does not say; 0: 128 */
  const char *const *stop; /* [stop_count] texts that end an answer, where the line has none; as in generate.h */
  int stop_count;
  const wn_chat_template *chat; /* context and question become the user's message, the answer prefix the beginning of
                                   the model's; NULL: plain text */
  const char *system;           /* with chat: the system message; NULL: none */
  const wn_budgets *budgets;    /* NULL: nothing is evicted */
  wn_cache_format cache;        /* default WN_CACHE_FLOAT */
  const char *save; /* gets a line of JSON that identifies the evaluation, then one for each answer as it is finished.
                       Answers that it has already are not written again; a file of another evaluation is
                       WN_ERR_CONFIG. NULL: none */
  void (*progress)(void *user, uint64_t done, uint64_t total); /* in answers; may be NULL */
  void *user;
  int64_t together; /* so many answers are written at a time, where a context has several: to other questions, or under
                       other settings. The same answers to the bit, for the memory of so many caches; 0: 1 */
} wn_answers_options;
#define WN_ANSWERS_TOGETHER 1024 /* the most */

/* The figures of a task, or of all of them. */
typedef struct wn_answers_figures {
  const char *task;     /* "" : lines without one; NULL: all tasks */
  uint64_t samples;     /* lines */
  wn_estimate score;    /* the mean over samples, with its error (winnow/estimate.h) */
  double prompt_tokens; /* mean number of tokens read: context, question, answer prefix */
  double answer_tokens; /* mean number of tokens written */
  double context_kept;  /* mean number of tokens that a layer holds when the context has been read; NAN: no contexts */
  double kept;          /* the same when the answer has ended */
  uint64_t cache_peak;  /* the most bytes that a sample's cache had */
  uint64_t cache_final; /* mean number of bytes when the answer has ended */
  double first_seconds; /* mean time until the first token can be drawn. A context read for several questions counts in
                           each of them */
  double tokens_per_second; /* of one answer, while it is written, with others or alone */
} wn_answers_figures;

/* What wn_answers_run found. wn_answers_result_clear gives its memory back. */
typedef struct wn_answers_result {
  wn_answers_figures all;
  wn_answers_figures *tasks; /* [task_count] in the order of the file */
  int task_count;
  uint64_t resumed;  /* answers taken from the file of earlier ones */
  uint64_t contexts; /* how many contexts were read: one for consecutive lines with the same. One that was read for
                        several settings counts for the first of them */
  double seconds;
} wn_answers_result;
void wn_answers_result_clear(wn_answers_result *result);

/* Answers the questions of the file, one after the other, greedily. The context's tokens are those that the text of the
 * context and the whole prompt begin with alike; they are read first, then the rest of the prompt. The session then
 * forks for each question of a context. WN_ERR_FORMAT names the file, the line and the field; every line is checked
 * before the first is answered. WN_ERR_CANCELLED after wn_context_cancel: the saved answers stay. */
wn_status wn_answers_run(wn_context *ctx, wn_model *model, const wn_answers_options *options,
                         wn_answers_result *result);

/* The same under several settings of the budgets, each with a file of its own; budgets and save of the options are not
 * read. Settings that read a context alike share the reading: those with `when` "prompt" or "hold" whose policies keep
 * the same notes. Answers and files are, to the bit, those of one run for each setting; only seconds differ. settings,
 * results [count]. */
typedef struct wn_answers_setting {
  const wn_budgets *budgets; /* NULL: nothing is evicted */
  const char *save;          /* as in the options */
} wn_answers_setting;
wn_status wn_answers_run_settings(wn_context *ctx, wn_model *model, const wn_answers_options *options,
                                  const wn_answers_setting *settings, int count, wn_answers_result *results);

WN_API_END
#endif
