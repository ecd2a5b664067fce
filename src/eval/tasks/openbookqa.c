/* OpenBookQA: Mihaylov et al., "Can a Suit of Armor Conduct Electricity?", EMNLP 2018. */
#include "eval/task.h"

static wn_status openbookqa_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *stem;
  const json_t *texts;
  WN_TRY(wn_task_text(ctx, q, line, "question_stem", &stem));
  WN_TRY(wn_task_labelled(ctx, q, line, &texts));
  return wn_task_ask_list(ctx, q, stem, texts);
}

const struct wn_task_row wn_task_openbookqa = {{"openbookqa", "elementary science: how a sentence ends",
                                                "question_stem, choices {text [4], label [4]}, answerKey",
                                                WN_METRICS_NORM},
                                               openbookqa_read};
