/* Answering those questions of a task that have no answer yet. */
#ifndef WN_EVAL_RUN_H
#define WN_EVAL_RUN_H

#include "eval/questions.h"

/* Scores every open question under options->budgets and writes it to the log. Progress counts all questions; `result`
 * receives tokens and bytes. context: as in task.h, but not 0. */
wn_status wn_questions_answer(wn_context *ctx, wn_model *model, const wn_task_options *options, int64_t context,
                              struct wn_questions *questions, const struct wn_eval_log *log, wn_task_result *result);
/* How many rows every layer and head holds without evicting; budgets NULL: any number. */
int64_t wn_budgets_least(const wn_model *model, const wn_budgets *budgets);

#endif
