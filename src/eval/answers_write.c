/* The second pass over a file of questions: contexts are read, answers are written.
 *
 * Lines with one context form a group: its tokens are read once, by a session of which each answer's session is a copy
 * (wn_session_copy). A line whose context ends elsewhere, because its question begins with another token, reads its
 * own. All sessions of a group have one capacity, the longest prompt and answer.
 *
 * Settings of budgets that read a context alike (wn_session_shares_reading) share its reading: each takes it over, and
 * is compressed by itself. Up to `together` answers are written at a time; each gets, to the bit, what it gets alone.
 */
#include <string.h>

#include "base/clock.h"
#include "decode/session.h"
#include "eval/answers_run.h"
#include "model/model.h"
#include "text/normalize.h"
#include "text/tokenizer.h"
#include "winnow/session_group.h"

enum { GROUP = 256 }; /* the most lines that read a context once, so that they fit into memory */

/* What a context has left, for one column. */
struct head {
  wn_session *session;
  double kept, seconds;
  uint64_t peak;
};

/* An answer that is being written. */
struct job {
  struct writing *w;
  struct wn_answers_column *column;
  struct wn_sample *s;
  wn_session *session;
  wn_generate_options o;
  wn_generation *generation;
  struct wn_bytes text;
  struct head of;
  bool failed;
};

struct writing {
  struct wn_answers *a;
  wn_session_group *group; /* NULL: one answer at a time */
  int64_t together, capacity;
  struct head reading; /* of the group's context; its session belongs to the first column that shares it */
  struct head head;    /* of a column with several lines */
  const struct wn_answers_column *head_of;
  struct job *jobs; /* [together] */
  wn_generation_turn *turns;
  int64_t open; /* jobs */
};

static wn_status writing_session(struct writing *w, const wn_budgets *budgets, wn_session **out) {
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = 1,
                                      .capacity = w->capacity,
                                      .budgets = budgets,
                                      .cache = w->a->o->cache,
                                      .group = w->group};
  return wn_session_create(w->a->ctx, w->a->model, &options, out);
}

/* The mean number of tokens that a layer and key-value head holds. */
static double writing_kept(const struct writing *w, const wn_session *session) {
  const wn_model_config *c = wn_model_config_get(w->a->model);
  double sum = 0;
  for (int64_t l = 0; l < c->layers; l++) sum += (double)wn_session_held_tokens(session, l);
  return sum / (double)(c->layers * c->kv_heads);
}

static void head_clear(struct head *head) {
  wn_session_destroy(head->session);
  *head = (struct head){0};
}

/* --- contexts --- */

/* Reads the line's context, in the pieces of a generation. */
static wn_status writing_read(struct writing *w, const struct wn_sample *s) {
  struct head *r = &w->reading;
  const double start = wn_seconds_now();
  wn_session_reset(r->session);
  WN_TRY(wn_session_make_room(r->session, s->context_n, NULL));
  for (int64_t done = 0, now; done < s->context_n; done += now) {
    if (wn_context_cancelled(w->a->ctx))
      return wn_fail(w->a->ctx, WN_ERR_CANCELLED, "stopped while a context was read");
    const int64_t room = wn_session_place_after(done) - done;
    now = s->context_n - done < room ? s->context_n - done : room;
    WN_TRY(wn_session_feed(w->a->ctx, r->session, s->ids + done, now, 0, NULL));
  }
  r->seconds = wn_seconds_now() - start;
  r->peak = wn_session_peak_bytes(r->session);
  return WN_OK;
}

/* The context ends here: the head has read it and nothing else. */
static wn_status writing_end_context(struct writing *w, struct head *head) {
  const double start = wn_seconds_now();
  WN_TRY(wn_session_repeat_with(w->a->ctx, head->session, w->a->o->tok, NULL));
  WN_TRY(wn_session_compress(w->a->ctx, head->session));
  const uint64_t peak = wn_session_peak_bytes(head->session);
  head->seconds = w->reading.seconds + wn_seconds_now() - start;
  head->peak = peak > w->reading.peak ? peak : w->reading.peak;
  head->kept = writing_kept(w, head->session);
  return WN_OK;
}

/* Takes over what was read, for a column, and ends the context there. */
static wn_status writing_take_over(struct writing *w, const struct wn_answers_column *column, struct head *out) {
  WN_TRY(writing_session(w, column->budgets, &out->session));
  WN_TRY(wn_session_copy(w->a->ctx, out->session, w->reading.session, NULL));
  return writing_end_context(w, out);
}

/* Opens the job's session at the end of its context. alone: the column has no other line with this context. shared:
 * other columns take over the reading. */
static wn_status job_begin(struct writing *w, struct job *job, bool alone, bool shared) {
  struct head *head = &w->head;
  if (job->s->context_n == 0) return writing_session(w, job->column->budgets, &job->session);
  if (alone) {
    if (shared) WN_TRY(writing_take_over(w, job->column, &job->of));
    if (!shared) job->of = w->reading, w->reading.session = NULL;
    job->session = job->of.session;
    return shared ? WN_OK : writing_end_context(w, &job->of);
  }
  if (w->head_of != job->column) {
    head_clear(head);
    if (shared) WN_TRY(writing_take_over(w, job->column, head));
    if (!shared) {
      *head = w->reading, w->reading.session = NULL;
      WN_TRY(writing_end_context(w, head));
    }
    w->head_of = job->column;
  }
  job->of = *head;
  WN_TRY(writing_session(w, job->column->budgets, &job->session));
  return wn_session_copy(w->a->ctx, job->session, head->session, NULL);
}

/* --- answers --- */

static bool job_piece(void *user, const wn_generate_piece *piece) {
  struct job *job = user;
  const uint64_t bytes = wn_session_kv_bytes(job->session);
  if (bytes > job->of.peak) job->of.peak = bytes;
  job->failed = wn_bytes_add(job->w->a->ctx, &job->text, piece->text, piece->bytes) != WN_OK;
  return !job->failed;
}

static wn_status job_generate(struct job *job, const int32_t *bos) {
  const struct wn_answers *a = job->w->a;
  const struct wn_sample *s = job->s;
  wn_generate_options *o = &job->o;
  wn_generate_options_init(o, sizeof *o);
  o->prompt = s->ids + s->context_n;
  o->prompt_count = s->n - s->context_n;
  o->text_before = s->ids;
  o->text_before_count = s->n;
  o->tok = a->o->tok;
  o->sampling = (wn_sampling){.top_p = 1};
  o->max_tokens = s->max_tokens;
  o->stop_tokens = bos;
  o->stop_token_count = *bos >= 0;
  o->stop_strings = s->stop_count ? s->stop : a->o->stop;
  o->stop_string_count = s->stop_count ? s->stop_count : a->o->stop_count;
  o->piece = job_piece;
  o->user = job;
  return wn_generation_create(a->ctx, job->session, o, &job->generation);
}

static wn_status job_end(struct job *job) {
  struct wn_answers *a = job->w->a;
  const wn_generate_result *result = wn_generation_result(job->generation);
  struct wn_answer *answer = &job->column->all[job->s->number];
  double *numbers = answer->numbers;
  if (job->failed) return wn_fail(a->ctx, WN_ERR_MEMORY, "out of memory: an answer");
  if (result->end == WN_GENERATE_CANCELLED) return wn_fail(a->ctx, WN_ERR_CANCELLED, "stopped in an answer");
  for (size_t i = 0; i < job->text.count; i++)
    if (!job->text.data[i]) job->text.data[i] = ' ';
  WN_TRY(wn_bytes_add(a->ctx, &job->text, "", 0));
  WN_TRY(wn_answer_score(a->ctx, job->s->scorer, job->text.data, job->s->references, job->s->reference_count,
                         &numbers[WN_ANSWER_SCORE]));
  const uint64_t bytes = wn_session_kv_bytes(job->session);
  numbers[WN_ANSWER_PROMPT_TOKENS] = (double)job->s->n;
  numbers[WN_ANSWER_CONTEXT_TOKENS] = (double)job->s->context_n;
  numbers[WN_ANSWER_TOKENS] = (double)result->tokens;
  numbers[WN_ANSWER_CONTEXT_KEPT] = job->of.kept;
  numbers[WN_ANSWER_KEPT] = writing_kept(job->w, job->session);
  numbers[WN_ANSWER_CACHE_PEAK] = (double)(bytes > job->of.peak ? bytes : job->of.peak);
  numbers[WN_ANSWER_CACHE_FINAL] = (double)bytes;
  numbers[WN_ANSWER_FIRST_SECONDS] = job->of.seconds + result->prompt_seconds;
  numbers[WN_ANSWER_SECONDS] = result->token_seconds;
  answer->done = true;
  WN_TRY(wn_answers_save(a, job->column, job->s, job->text.data, result->end));
  a->done++;
  if (a->o->progress) a->o->progress(a->o->user, a->done, a->total);
  return WN_OK;
}

static void job_clear(struct job *job) {
  wn_generation_destroy(job->generation);
  wn_session_destroy(job->session ? job->session : job->of.session);
  wn_bytes_clear(&job->text);
  *job = (struct job){0};
}

/* Writes the answers of the open jobs, all together. */
static wn_status writing_run(struct writing *w) {
  wn_status status = WN_OK;
  bool more = w->open > 0;
  for (int64_t n = w->open; status == WN_OK && more && !w->group;)
    status = wn_generation_step(w->a->ctx, w->jobs[n - 1].generation, &more);
  for (int64_t i = 0; w->group && i < w->open; i++)
    w->turns[i] = (wn_generation_turn){.generation = w->jobs[i].generation};
  for (int64_t n = w->open; status == WN_OK && n > 0 && w->group;) {
    status = wn_generation_step_together(w->a->ctx, w->group, w->turns, n, 0);
    const int64_t stepped = n;
    n = 0;
    for (int64_t i = 0; i < stepped; i++)
      if (w->turns[i].more) w->turns[n++] = w->turns[i];
  }
  for (int64_t i = 0; i < w->open; i++) {
    if (status == WN_OK) status = job_end(&w->jobs[i]);
    job_clear(&w->jobs[i]);
  }
  w->open = 0;
  return status;
}

/* --- groups of lines --- */

static bool column_open(const struct wn_answers_column *column, const struct wn_sample *s) {
  return !column->all[s->number].done;
}

/* Answers lines [count], whose contexts end at the same token, under the columns that `takes` names: with `shared`
 * several. */
static wn_status writing_lines(struct writing *w, struct wn_sample *lines, int64_t count, const bool *takes,
                               bool shared) {
  const int32_t bos = wn_tokenizer_bos(w->a->o->tok);
  wn_status status = WN_OK;
  if (lines->context_n > 0) WN_TRY(writing_read(w, lines));
  w->head_of = NULL;
  for (int c = 0; c < w->a->column_count && status == WN_OK; c++) {
    struct wn_answers_column *column = &w->a->columns[c];
    int64_t open = 0;
    for (int64_t i = 0; takes[c] && i < count; i++) open += column_open(column, &lines[i]);
    for (int64_t i = 0; i < count && open > 0 && status == WN_OK; i++) {
      if (!column_open(column, &lines[i])) continue;
      struct job *job = &w->jobs[w->open++];
      *job = (struct job){.w = w, .column = column, .s = &lines[i]};
      status = job_begin(w, job, open == 1, shared);
      if (status == WN_OK) status = job_generate(job, &bos);
      if (status == WN_OK && w->open == w->together) status = writing_run(w);
    }
  }
  if (status == WN_OK) status = writing_run(w);
  while (w->open > 0) job_clear(&w->jobs[--w->open]);
  head_clear(&w->head);
  return status;
}

/* Opens the session that reads for column `first` and for those after it that are wanted and can share; they are no
 * longer wanted, and named by takes. */
static wn_status writing_reader(struct writing *w, int first, bool *wanted, bool *takes, bool *shared) {
  const struct wn_answers_column *columns = w->a->columns;
  WN_TRY(writing_session(w, columns[first].budgets, &w->reading.session));
  columns[first].r->contexts++;
  *shared = false;
  for (int c = first; c < w->a->column_count; c++) {
    const wn_budgets *b = columns[c].budgets;
    takes[c] = wanted[c] && (c == first || (b && wn_session_shares_reading(w->reading.session, b)));
    if (!takes[c]) continue;
    wanted[c] = false;
    *shared |= c > first;
    if (c > first) WN_TRY(wn_session_read_for(w->a->ctx, w->reading.session, b));
  }
  return WN_OK;
}

/* Answers lines [count], whose contexts end at the same token. room [2][columns]. */
static wn_status writing_same_end(struct writing *w, struct wn_sample *lines, int64_t count, bool *room) {
  const int columns = w->a->column_count;
  bool *wanted = room, *takes = room + columns, shared = false;
  for (int c = 0; c < columns; c++) {
    wanted[c] = false;
    for (int64_t i = 0; i < count; i++) wanted[c] |= column_open(&w->a->columns[c], &lines[i]);
  }
  if (lines->context_n == 0) return writing_lines(w, lines, count, wanted, false);
  for (int c = 0; c < columns; c++) {
    if (!wanted[c]) continue;
    memset(takes, 0, (size_t)columns * sizeof *takes);
    wn_status status = writing_reader(w, c, wanted, takes, &shared);
    if (status == WN_OK) status = writing_lines(w, lines, count, takes, shared);
    head_clear(&w->reading);
    WN_TRY(status);
  }
  return WN_OK;
}

/* Answers lines [count], which have one context. */
static wn_status writing_group(struct writing *w, struct wn_sample *lines, int64_t count, bool *room) {
  const struct wn_answers *a = w->a;
  const wn_model_config *c = wn_model_config_get(a->model);
  w->capacity = 0;
  for (int64_t i = 0; i < count; i++) {
    WN_TRY(wn_sample_encode(a->ctx, a->o, &lines[i]));
    const int64_t n = lines[i].n;
    if (c->position == WN_POS_LEARNED && n > c->context)
      return wn_fail(a->ctx, WN_ERR_ARGUMENT, "%s: the prompt has %lld tokens, the model learned positions for %lld",
                     lines[i].where, (long long)n, (long long)c->context);
    if (n + lines[i].max_tokens > w->capacity) w->capacity = n + lines[i].max_tokens;
  }
  if (c->position == WN_POS_LEARNED && w->capacity > c->context) w->capacity = c->context;
  for (int64_t i = 0, n; i < count; i += n) {
    for (n = 1; i + n < count && lines[i + n].context_n == lines[i].context_n;) n++;
    WN_TRY(writing_same_end(w, lines + i, n, room));
  }
  return WN_OK;
}

/* Reads on to line `number` of the file. */
static wn_status writing_line(const struct wn_answers *a, struct wn_lines *lines, uint64_t number,
                              struct wn_sample *out) {
  bool more = true;
  while (more) {
    WN_TRY(wn_sample_next(a->ctx, a->o, lines, out, &more));
    if (more && lines->line == number) return WN_OK;
    wn_sample_clear(out);
  }
  return wn_fail(a->ctx, WN_ERR_IO, "%s: has changed: line %llu is gone", a->o->path, (unsigned long long)number);
}

/* Answers what is open among lines [at, at + count), which share a context; samples [GROUP]. */
static wn_status writing_open_lines(struct writing *w, struct wn_lines *lines, int64_t at, int64_t count,
                                    struct wn_sample *samples, bool *room) {
  int64_t open = 0;
  wn_status status = WN_OK;
  for (int64_t i = at; i < at + count && status == WN_OK; i++) {
    bool done = true;
    for (int c = 0; c < w->a->column_count; c++) done &= w->a->columns[c].all[i].done;
    if (done) continue;
    status = writing_line(w->a, lines, w->a->all[i].line, &samples[open]);
    samples[open].number = i;
    if (status == WN_OK) open++;
  }
  if (status == WN_OK && open > 0) status = writing_group(w, samples, open, room);
  for (int64_t i = 0; i < open; i++) wn_sample_clear(&samples[i]);
  return status;
}

static wn_status writing_all(struct writing *w) {
  const struct wn_answers *a = w->a;
  struct wn_lines lines = {0};
  struct wn_sample *samples;
  bool *room;
  struct wn_arrays arrays = {0};
  const struct wn_array of[] = {
      WN_ARRAY_FOR(samples, "questions", true, WN_DIMS(GROUP)),
      WN_ARRAY_FOR(room, "settings", true, WN_DIMS(2, a->column_count)),
      WN_ARRAY_FOR(w->jobs, "answers that are written", true, WN_DIMS(w->together)),
      WN_ARRAY_FOR(w->turns, "answers that are written", true, WN_DIMS(w->together)),
  };
  WN_TRY(WN_ARRAYS_CREATE(a->ctx, &arrays, "answers", of));
  wn_status status = wn_lines_open(a->ctx, a->o->path, &lines);
  for (int64_t at = 0, n; at < a->count && status == WN_OK; at += n) {
    for (n = 1; at + n < a->count && n < GROUP && a->all[at + n].shares;) n++;
    status = writing_open_lines(w, &lines, at, n, samples, room);
  }
  wn_lines_close(&lines);
  wn_arrays_clear(&arrays);
  return status;
}

wn_status wn_answers_write(struct wn_answers *a) {
  struct writing w = {.a = a, .together = a->o->together > 0 ? a->o->together : 1};
  if (w.together > 1) WN_TRY(wn_session_group_create(a->ctx, a->model, w.together, &w.group));
  const wn_status status = writing_all(&w);
  wn_session_group_destroy(w.group);
  return status;
}
