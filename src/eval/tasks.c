/* The tasks, worded as in lm-evaluation-harness. Most are a row of texts in which {field} stands for a field of a line;
 * the others have a function. */
#include <stdio.h>
#include <string.h>

#include "eval/task.h"

/* ---- tasks with a function ---- */

static wn_status task_ask_contexts(wn_context *ctx, const json_t *line, const char *delimiter, struct wn_question *q) {
  const char *continuation;
  const json_t *list;
  WN_TRY(wn_task_list(ctx, q, line, "contexts", &list));
  WN_TRY(wn_task_text(ctx, q, line, "continuation", &continuation));
  for (size_t i = 0; i < json_array_size(list); i++)
    WN_TRY(wn_task_ask(ctx, q, json_string_value(json_array_get(list, i)), delimiter, continuation));
  return WN_OK;
}

/* One context with choices, several contexts with one continuation, or one of each. */
static wn_status task_read_choices(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *context = "", *delimiter = " ", *continuation;
  const json_t *list;
  if (json_object_get(line, "delimiter")) WN_TRY(wn_task_text(ctx, q, line, "delimiter", &delimiter));
  if (json_object_get(line, "contexts")) {
    WN_TRY(task_ask_contexts(ctx, line, delimiter, q));
  } else {
    WN_TRY(wn_task_text(ctx, q, line, "context", &context));
    if (json_object_get(line, "continuation")) {
      WN_TRY(wn_task_text(ctx, q, line, "continuation", &continuation));
      return wn_task_ask(ctx, q, context, delimiter, continuation);
    }
    WN_TRY(wn_task_list(ctx, q, line, "choices", &list));
    WN_TRY(wn_task_ask_list(ctx, q, context, delimiter, list));
  }
  return wn_task_number(ctx, q, line, "gold", 0, q->count, &q->gold);
}

/* Partial scoring (Trinh, Le 2018), here and below: what follows a word that stands for somebody is scored. */
static wn_status task_read_wsc(wn_context *ctx, const json_t *line, struct wn_question *q) {
  WN_TRY(task_ask_contexts(ctx, line, " ", q));
  return wn_task_number(ctx, q, line, "label", 0, q->count, &q->gold);
}

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

static wn_status task_read_winogrande(wn_context *ctx, const json_t *line, struct wn_question *q) {
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

/* The choices are part of the question, and the answer is a letter. */
static wn_status task_read_commonsense(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *question, *begin;
  size_t bytes;
  const json_t *texts;
  struct wn_text context = {0};
  WN_TRY(wn_task_text(ctx, q, line, "question", &question));
  WN_TRY(wn_task_labelled(ctx, q, line, &texts));
  if (json_array_size(texts) != 5)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"choices\": expected 5 of them, found %zu", q->where,
                   json_array_size(texts));
  wn_task_strip(question, &begin, &bytes);
  wn_status status = wn_task_format(ctx, &context, "Question: %.*s\n", (int)bytes, begin);
  for (int i = 0; i < 5 && status == WN_OK; i++)
    status = wn_task_format(ctx, &context, "%c. %s\n", 'A' + i, json_string_value(json_array_get(texts, (size_t)i)));
  if (status == WN_OK) status = wn_task_format(ctx, &context, "Answer:");
  for (int i = 0; i < 5 && status == WN_OK; i++)
    status = wn_task_ask(ctx, q, context.data, " ", (const char[]){(char)('A' + i), 0});
  wn_free(context.data);
  return status;
}

static wn_status task_read_lambada(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *text;
  struct wn_text context = {0};
  WN_TRY(wn_task_text(ctx, q, line, "text", &text));
  const char *space = strrchr(text, ' ');
  wn_status status = wn_task_format(ctx, &context, "%.*s", space ? (int)(space - text) : 0, text);
  if (status == WN_OK) status = wn_task_ask(ctx, q, context.data, " ", space ? space + 1 : text);
  wn_free(context.data);
  return status;
}

/* ---- the list ---- */

#define ACC (1u << WN_METRIC_ACC)
#define NORM (ACC | 1u << WN_METRIC_ACC_NORM | 1u << WN_METRIC_ACC_BYTES)
#define PERPLEXITY (1u << WN_METRIC_PERPLEXITY)
#define ARC_FIELDS "question, choices {text [3-5], label [3-5]}, answerKey"

static const struct wn_task_row task_rows[] = {
    /* Zellers et al., "HellaSwag: Can a Machine Really Finish Your Sentence?", ACL 2019 */
    {{"hellaswag", "which of four sentences continues the text", "query, choices [4], gold 0-3", NORM},
     .context = "{query}",
     .list = "choices",
     .gold = "gold"},
    /* Clark et al., "Think you have Solved Question Answering? Try ARC, the AI2 Reasoning Challenge", arXiv 1803.05457
     */
    {{"arc_easy", "school science, the easier questions", ARC_FIELDS, NORM},
     .context = "Question: {question}\nAnswer:"},
    {{"arc_challenge", "school science, the harder questions", ARC_FIELDS, NORM},
     .context = "Question: {question}\nAnswer:"},
    /* Bisk et al., "PIQA: Reasoning about Physical Commonsense in Natural Language", AAAI 2020 */
    {{"piqa", "which of two ways reaches a goal", "goal, sol1, sol2, label 0-1", NORM},
     .context = "Question: {goal}\nAnswer:",
     .choices = {"{sol1}", "{sol2}"},
     .gold = "label"},
    /* Talmor et al., "CommonsenseQA: A Question Answering Challenge Targeting Commonsense Knowledge", NAACL 2019 */
    {{"commonsense_qa", "everyday knowledge: the letter of one of five answers",
      "question, choices {text [5], label [5]}, answerKey", ACC},
     .read = task_read_commonsense},
    /* Mihaylov et al., "Can a Suit of Armor Conduct Electricity?", EMNLP 2018 */
    {{"openbookqa", "elementary science: how a sentence ends",
      "question_stem, choices {text [4], label [4]}, answerKey", NORM},
     .context = "{question_stem}"},
    /* Clark et al., "BoolQ: Exploring the Surprising Difficulty of Natural Yes/No Questions", NAACL 2019 */
    {{"boolq", "yes or no, after a passage", "passage, question (without its mark), label 0 no, 1 yes", ACC},
     .context = "{passage}\nQuestion: {question}?\nAnswer:",
     .choices = {"no", "yes"},
     .gold = "label"},
    /* OpenAI's detokenised test: Paperno et al., "The LAMBADA dataset: Word prediction requiring a broad discourse
     * context", ACL 2016; Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 */
    {{"lambada_openai", "the last word of a passage", "text", ACC | PERPLEXITY}, .read = task_read_lambada},
    /* Sap et al., "Social IQa: Commonsense Reasoning about Social Interactions", EMNLP 2019 */
    {{"social_iqa", "why people do something, and what they feel",
      "context, question, answerA, answerB, answerC, label 1-3", ACC},
     .context = "Q: {context} {question}\nA:",
     .choices = {"{answerA}", "{answerB}", "{answerC}"},
     .gold = "label",
     .first = 1},
    /* Sakaguchi et al., "WinoGrande: An Adversarial Winograd Schema Challenge at Scale", AAAI 2020 */
    {{"winogrande", "whom a sentence means, by what follows", "sentence with a _, option1, option2, answer 1-2", ACC},
     .read = task_read_winogrande},
    /* Roemmele, Bejan, Gordon, "Choice of Plausible Alternatives", AAAI Spring Symposium 2011. The context ends with
     * "because" or "therefore" */
    {{"copa", "which of two is the cause, or what follows", "context, choices [2], label 0-1", ACC},
     .context = "{context}",
     .list = "choices",
     .gold = "label"},
    /* Levesque, Davis, Morgenstern, "The Winograd Schema Challenge", KR 2012 */
    {{"wsc273", "whom a pronoun means, by what follows", "contexts [2], continuation, label 0-1", ACC},
     .read = task_read_wsc},
    {{"choices", "questions of your own",
      "context and choices [..], or contexts [..] and continuation, with gold 0..; or context and continuation alone;"
      " delimiter \" \"",
      NORM | PERPLEXITY},
     .read = task_read_choices},
};
enum { TASK_ROWS = sizeof task_rows / sizeof *task_rows };

/* ---- reading by a row ---- */

/* The text `form` with the line's fields in place of their names in braces. */
static wn_status task_fill(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *form,
                           struct wn_text *out) {
  char field[32];
  const char *open, *value;
  for (;; form = open + strlen(field) + 2) {
    open = form + strcspn(form, "{");
    WN_TRY(wn_task_format(ctx, out, "%.*s", (int)(open - form), form));
    if (!*open) return WN_OK;
    snprintf(field, sizeof field, "%.*s", (int)strcspn(open + 1, "}"), open + 1);
    WN_TRY(wn_task_text(ctx, q, line, field, &value));
    WN_TRY(wn_task_format(ctx, out, "%s", value));
  }
}

wn_status wn_task_read(wn_context *ctx, const struct wn_task_row *task, const json_t *line, struct wn_question *q) {
  if (task->read) return task->read(ctx, line, q);
  struct wn_text context = {0};
  const json_t *list = NULL;
  int count = 0;
  while (count < WN_TASK_FORMS && task->choices[count]) count++;
  wn_status status = task_fill(ctx, q, line, task->context, &context);
  if (status == WN_OK && task->list)
    status = wn_task_list(ctx, q, line, task->list, &list);
  else if (status == WN_OK && count == 0)
    status = wn_task_labelled(ctx, q, line, &list);
  if (status == WN_OK && task->gold)
    status =
        wn_task_number(ctx, q, line, task->gold, task->first, count ? count : (int)json_array_size(list), &q->gold);
  if (status == WN_OK) status = wn_task_ask_list(ctx, q, context.data, " ", list);
  for (int i = 0; i < count && status == WN_OK; i++) {
    struct wn_text choice = {0};
    status = task_fill(ctx, q, line, task->choices[i], &choice);
    if (status == WN_OK) status = wn_task_ask(ctx, q, context.data, " ", choice.data);
    wn_free(choice.data);
  }
  wn_free(context.data);
  return status;
}

/* ---- calls ---- */

int wn_task_count(void) {
  return TASK_ROWS;
}

const wn_task_info *wn_task_at(int i) {
  return i >= 0 && i < TASK_ROWS ? &task_rows[i].info : NULL;
}

const char *wn_task_metric_name(wn_task_metric metric) {
  static const char *const names[WN_METRIC_COUNT] = {"acc", "acc_norm", "acc_bytes", "perplexity"};
  return (unsigned)metric < WN_METRIC_COUNT ? names[metric] : "?";
}

int wn_task_find(const char *name) {
  for (int i = 0; name && i < TASK_ROWS; i++)
    if (!strcmp(task_rows[i].info.name, name)) return i;
  return -1;
}

wn_task_metric wn_task_chief_metric(const wn_task_info *task) {
  return task && (task->metrics & 1u << WN_METRIC_ACC_NORM) ? WN_METRIC_ACC_NORM : WN_METRIC_ACC;
}

const struct wn_task_row *wn_task_row(const char *name) {
  const int i = wn_task_find(name);
  return i >= 0 ? &task_rows[i] : NULL;
}
