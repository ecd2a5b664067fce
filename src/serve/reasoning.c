/* Thoughts: a mark at the beginning of the answer, or at the end of the prompt, begins them; the other one ends them.
 * White space around them is dropped. What may be the beginning of a mark is held back. */
#include "serve/reasoning.h"

#include <string.h>

#include "base/alloc.h"
#include "text/normalize.h"

static const struct wn_reasoning_form forms[] = {{"<think>", "</think>"}, {"<seed:think>", "</seed:think>"}};

const struct wn_reasoning_form *wn_reasoning_form_of(const char *template) {
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
    if (template && strstr(template, forms[i].close)) return &forms[i];
  return NULL;
}

enum reasoning_state {
  REASONING_BEGIN,  /* before the answer */
  REASONING_LEAD,   /* after the mark that begins thoughts */
  REASONING_INSIDE, /* in thoughts */
  REASONING_GAP,    /* after the mark that ends them */
  REASONING_AFTER
};
struct wn_reasoning {
  const struct wn_reasoning_form *form;
  enum reasoning_state state;
  struct wn_bytes held;
  size_t from; /* bytes of `held` that have been handed out */
};

struct wn_reasoning *wn_reasoning_create(const struct wn_reasoning_form *form, const char *prompt_end, size_t bytes) {
  struct wn_reasoning *r;
  const size_t mark = strlen(form->open);
  if (WN_ALLOC(NULL, "thoughts", 1, &r) != WN_OK) return NULL;
  while (bytes > 0 && wn_json_is_space(prompt_end[bytes - 1])) bytes--;
  const bool begun = bytes >= mark && !memcmp(prompt_end + bytes - mark, form->open, mark);
  *r = (struct wn_reasoning){.form = form, .state = begun ? REASONING_LEAD : REASONING_BEGIN};
  return r;
}

void wn_reasoning_destroy(struct wn_reasoning *r) {
  if (!r) return;
  wn_bytes_clear(&r->held);
  wn_free(r);
}

bool wn_reasoning_push(struct wn_reasoning *r, const char *text, size_t bytes) {
  if (r->from) memmove(r->held.data, r->held.data + r->from, r->held.count -= r->from);
  r->from = 0;
  return wn_bytes_add(NULL, &r->held, text, bytes) == WN_OK;
}

bool wn_reasoning_inside(const struct wn_reasoning *r) {
  return r->state == REASONING_LEAD || r->state == REASONING_INSIDE;
}

/* How many bytes at `at` may begin the mark; *whole: all of it is there. */
static size_t reasoning_mark(const struct wn_reasoning *r, size_t at, const char *mark, bool *whole) {
  const size_t n = strlen(mark), left = r->held.count - at, seen = left < n ? left : n;
  *whole = false;
  if (memcmp(r->held.data + at, mark, seen) != 0) return 0;
  *whole = seen == n;
  return seen;
}

/* Thoughts up to white space that the end of the thoughts may follow. True: the mark is there. */
static bool reasoning_until(struct wn_reasoning *r, size_t *end, size_t *after) {
  bool whole;
  *end = *after = r->from;
  for (size_t at = r->from; at < r->held.count; at++) {
    const size_t seen = reasoning_mark(r, at, r->form->close, &whole);
    *after = at + seen;
    if (whole || (seen && *after == r->held.count)) return whole;
    if (!wn_json_is_space(r->held.data[at])) *end = at + 1;
  }
  return false;
}

bool wn_reasoning_next(struct wn_reasoning *r, bool end, const char **text, size_t *bytes, bool *thought) {
  bool whole = false;
  if (r->state != REASONING_INSIDE && r->state != REASONING_AFTER) {
    size_t at = r->from;
    while (at < r->held.count && wn_json_is_space(r->held.data[at])) at++;
    if (r->state == REASONING_BEGIN) {
      const size_t seen = at < r->held.count ? reasoning_mark(r, at, r->form->open, &whole) : 0;
      if (!whole && (at == r->held.count || at + seen == r->held.count) && !end) return false;
      if (whole) r->from = at + seen;
      r->state = whole ? REASONING_LEAD : REASONING_AFTER;
      if (whole) return wn_reasoning_next(r, end, text, bytes, thought);
    } else {
      r->from = at;
      if (at == r->held.count) return false;
      r->state = r->state == REASONING_LEAD ? REASONING_INSIDE : REASONING_AFTER;
    }
  }
  *thought = r->state == REASONING_INSIDE;
  *text = r->held.data + r->from;
  size_t until = r->held.count, after = until;
  if (*thought) whole = reasoning_until(r, &until, &after);
  if (*thought && !whole && end) until = after = r->held.count;
  *bytes = until - r->from;
  r->from = whole || (*thought && end) ? after : until;
  if (whole) r->state = REASONING_GAP;
  return *bytes > 0 || (whole && wn_reasoning_next(r, end, text, bytes, thought));
}
