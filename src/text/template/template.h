/* Chat templates as they are: an interpreter of the part of Jinja2 that published chat templates use, set up as
 * transformers does (trim_blocks, lstrip_blocks, break and continue, tojson without escapes of HTML, raise_exception,
 * strftime_now). A template comes from a stranger: steps, depth and memory are bounded, and nothing outside is reached.
 *
 * Each byte of the text keeps its origin, through slices, replacements and filters, so that a special token in a
 * message stays plain text while the template's own are recognised. */
#ifndef WN_TEXT_TEMPLATE_H
#define WN_TEXT_TEMPLATE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

#define WN_TEMPLATE_STEPS 16000000            /* evaluated expressions, and each 32 bytes that one goes through */
#define WN_TEMPLATE_MEMORY ((size_t)64 << 20) /* bytes, beside 32 for each byte of the messages */
#define WN_TEMPLATE_DEPTH 300                 /* statements and expressions within each other as they run */
#define WN_TEMPLATE_NESTING 60                /* the same in the source, each kind */

enum wn_origin {
  WN_ORIGIN_TEMPLATE, /* the template, a token's name, a role */
  WN_ORIGIN_GIVEN,    /* messages, tools, what a request sets */
  WN_ORIGIN_MARKED,   /* the first marked one of these texts, */
  WN_ORIGIN_MARKED2,  /* and the second */
  WN_ORIGIN_NUMBERED  /* and WN_ORIGINS - 1 more: message i of `numbered`, i modulo WN_ORIGINS */
};
enum { WN_ORIGINS = 128 };

/* Variables of a template; objects, borrowed. NULL: none. */
struct wn_template_input {
  const json_t *own;       /* texts in it are the template's (bos_token) */
  const json_t *given;     /* texts in it are not, but for the known roles of messages */
  const json_t *marked[2]; /* texts within `given`; NULL: none */
  const json_t *numbered;  /* a list within `given`; NULL: its texts are as the others */
  int64_t now;             /* seconds since 1970 for strftime_now; 0: the clock's */
};
struct wn_template_text {
  char *data;          /* [bytes], a NUL after them */
  unsigned char *from; /* [bytes] enum wn_origin */
  size_t bytes;
};

/* WN_ERR_UNSUPPORTED: the template has something that is not known; WN_ERR_FORMAT: it is no template, or goes beyond a
 * bound; WN_ERR_ARGUMENT: it refuses the conversation. The error names its line. */
wn_status wn_template_render(wn_context *ctx, const char *source, const struct wn_template_input *input,
                             struct wn_template_text *out);
void wn_template_text_clear(struct wn_template_text *text);
/* Reads it without running it. */
wn_status wn_template_check(wn_context *ctx, const char *source);

#endif
