/* Requests of the caller, scored like the questions of a task (run.c). */
#include "base/misuse.h"
#include "base/options.h"
#include "eval/run.h"

/* Adds one request, cut so that `context` tokens are read and one more is scored. */
static wn_status request_add(wn_context *ctx, const wn_model *model, int64_t context, const wn_request *from,
                             int64_t number, struct wn_questions *q) {
  const int64_t V = wn_model_config_get(model)->vocab_size;
  struct wn_asked_request *out = &q->requests[q->request_count];
  if (!from->tokens || from->context < 1 || from->context >= from->count)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "request %lld: %lld tokens, of which %lld are the context: expected a context of at least one token "
                   "and a continuation",
                   (long long)number, (long long)from->count, (long long)from->context);
  for (int64_t i = 0; i < from->count; i++)
    if (from->tokens[i] < 0 || from->tokens[i] >= V)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "request %lld: token %lld is %d, the vocabulary has %lld", (long long)number,
                     (long long)i, (int)from->tokens[i], (long long)V);
  const int64_t over = from->count - context - 1, drop = over > 0 ? over : 0;
  if (drop >= from->context)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "request %lld: the continuation has %lld tokens, the context has room for %lld", (long long)number,
                   (long long)(from->count - from->context), (long long)context);
  *out = (struct wn_asked_request){.at = q->ids.count, .n = from->count - drop, .context = from->context - drop};
  WN_TRY(wn_ids_add(ctx, &q->ids, from->tokens + drop, (size_t)out->n));
  q->request_count++;
  return WN_OK;
}

static wn_status requests_read(wn_context *ctx, const wn_model *model, int64_t context, const wn_request *requests,
                               int64_t count, struct wn_questions *q) {
  WN_TRY(WN_ALLOC(ctx, "requests", count, &q->requests));
  WN_TRY(WN_ALLOC(ctx, "questions", count, &q->all));
  for (int64_t i = 0; i < count; i++) {
    WN_TRY(request_add(ctx, model, context, &requests[i], i, q));
    if (i == 0 || requests[i].question != requests[i - 1].question)
      q->all[q->count++] = (struct wn_asked){.first = (size_t)i, .gold = -1};
    q->all[q->count - 1].count++;
  }
  for (int64_t i = 0; i < q->count; i++) wn_question_compare(q, &q->all[i]);
  return WN_OK;
}

static wn_status requests_check(wn_context *ctx, const wn_model *model, const wn_request_options *o, int64_t *context) {
  const wn_model_config *c = wn_model_config_get(model);
  if (c->encoder.layers > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "requests are scored by decoders, the model has an encoder");
  *context = o->context ? o->context : c->context;
  if (*context < 1 || o->batch < 0 || (c->position == WN_POS_LEARNED && *context > c->context))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "requests: context %lld, batch %lld: expected a context of 1 to %lld",
                   (long long)*context, (long long)o->batch, (long long)c->context);
  return o->budgets && o->budgets->layers > 0 ? wn_budgets_check(ctx, o->budgets, c) : WN_OK;
}

wn_status wn_score_requests(wn_context *ctx, wn_model *model, const wn_request_options *options, wn_request *requests,
                            int64_t count) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_ARRAY(requests, count));
  wn_request_options own = {0};
  struct wn_questions q = {0};
  int64_t context = 0;
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_request_options, options, &own));
  WN_TRY(requests_check(ctx, model, &own, &context));
  if (count == 0) return WN_OK;
  const wn_task_options task = {.batch = own.batch,
                                .budgets = own.budgets && own.budgets->layers > 0 ? own.budgets : NULL,
                                .cache = own.cache,
                                .progress = own.progress,
                                .user = own.user};
  const struct wn_eval_log log = {0};
  wn_task_result result = {0};
  wn_status status = requests_read(ctx, model, context, requests, count, &q);
  if (status == WN_OK) status = wn_questions_answer(ctx, model, &task, context, &q, &log, &result);
  for (int64_t i = 0; i < count && status == WN_OK; i++) {
    requests[i].log_probability = q.requests[i].log_probability;
    requests[i].greedy = q.requests[i].greedy;
  }
  wn_questions_clear(&q);
  return status;
}
