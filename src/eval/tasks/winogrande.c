/* WinoGrande: Sakaguchi et al., "WinoGrande: An Adversarial Winograd Schema Challenge at Scale", AAAI 2020. Partial
 * scoring (Trinh, Le 2018): each of the two words is put into the blank, and the text after the blank is scored. */
#include "eval/task.h"

#include <string.h>

static wn_status winogrande_ask(wn_context *ctx, struct wn_question *q, const char *sentence, const char *blank,
                                const char *option) {
  struct wn_text context = {0}, rest = {0};
  const char *begin, *end = strchr(blank + 1, '_');
  size_t bytes;
  /* Up to a second blank, if there is one. */
  wn_status status =
      wn_task_format(ctx, &rest, "%.*s", end ? (int)(end - blank - 1) : (int)strlen(blank + 1), blank + 1);
  if (status == WN_OK) status = wn_task_format(ctx, &context, "%.*s%s", (int)(blank - sentence), sentence, option);
  if (status == WN_OK) {
    wn_task_strip(rest.data, &begin, &bytes);
    rest.data[(size_t)(begin - rest.data) + bytes] = 0;
    status = wn_task_ask(ctx, q, context.data, " ", begin);
  }
  wn_free(context.data);
  wn_free(rest.data);
  return status;
}

static wn_status winogrande_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *sentence, *option1, *option2;
  WN_TRY(wn_task_text(ctx, q, line, "sentence", &sentence));
  WN_TRY(wn_task_text(ctx, q, line, "option1", &option1));
  WN_TRY(wn_task_text(ctx, q, line, "option2", &option2));
  WN_TRY(wn_task_number(ctx, q, line, "answer", 1, 2, &q->gold));
  const char *blank = strchr(sentence, '_');
  if (!blank) return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"sentence\": expected a blank, \"_\"", q->where);
  WN_TRY(winogrande_ask(ctx, q, sentence, blank, option1));
  return winogrande_ask(ctx, q, sentence, blank, option2);
}

const struct wn_task_row wn_task_winogrande = {{"winogrande", "whom a sentence means, by what follows",
                                                "sentence with a _, option1, option2, answer 1-2", WN_METRICS_ACC},
                                               winogrande_read};
