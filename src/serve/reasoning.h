/* Thoughts that a model writes before its answer, between marks that its chat template has. Private to src/serve. */
#ifndef WN_SERVE_REASONING_H
#define WN_SERVE_REASONING_H

#include <stdbool.h>
#include <stddef.h>

struct wn_reasoning_form {
  const char *open, *close;
};
const struct wn_reasoning_form *wn_reasoning_form_of(const char *template); /* of a template's text; NULL: none */

/* Splits an answer that comes in pieces; how it is cut changes nothing. */
struct wn_reasoning;
/* prompt_end [bytes]: the prompt's last text, which may begin the thoughts. NULL: out of memory. */
struct wn_reasoning *wn_reasoning_create(const struct wn_reasoning_form *form, const char *prompt_end, size_t bytes);
void wn_reasoning_destroy(struct wn_reasoning *r);                              /* NULL is allowed */
bool wn_reasoning_push(struct wn_reasoning *r, const char *text, size_t bytes); /* false: out of memory */
/* What is certain by now; the text is borrowed until the next push. `end`: no more comes. False: nothing (more). */
bool wn_reasoning_next(struct wn_reasoning *r, bool end, const char **text, size_t *bytes, bool *thought);
bool wn_reasoning_inside(const struct wn_reasoning *r); /* in thoughts? */

#endif
