/* An automaton over the bytes of a JSON text that fits a schema: a stack of the objects and lists that are open, and a
 * few numbers for where in a token of JSON the text is. Where a schema leaves several alternatives, several such states
 * are followed at a time. From every state that is reached a text can be completed: nothing is begun that could not be
 * ended within WN_SCHEMA_DEPTH.
 *
 * What is written of all that JSON allows: properties in the order of the schema, other ones after them; names and
 * constants as wn_json_text writes them; white space only as one blank, or one or two line ends and up to
 * WN_JSON_INDENT blanks; numbers of up to 18 digits before and 20 after the point and exponents up to 280; no \u0000
 * and no half of a pair of surrogates; nothing after the text. */
#ifndef WN_TEXT_JSON_MACHINE_H
#define WN_TEXT_JSON_MACHINE_H

#include "text/schema.h"

enum { WN_JSON_INDENT = 20 };

enum wn_json_mode {
  WN_JSON_VALUE,      /* before a value: `what` */
  WN_JSON_FIRST_ITEM, /* after "[" */
  WN_JSON_FIRST_NAME, /* after "{" */
  WN_JSON_NEXT_NAME,  /* after a comma in an object */
  WN_JSON_NAME,       /* in a name */
  WN_JSON_COLON,      /* after a name: the value will be `what` */
  WN_JSON_STRING,     /* of shape `what` */
  WN_JSON_WORD,       /* one of the words from `low` to `high` */
  WN_JSON_NUMBER,
  WN_JSON_INTEGER, /* of shape `what` */
  WN_JSON_AFTER    /* after a value */
};

/* Inside a string. */
enum wn_json_string {
  WN_STRING_PLAIN, /* between characters */
  WN_STRING_NONE,  /* no string */
  WN_STRING_TAIL1, /* so many bytes of a character are missing */
  WN_STRING_TAIL2,
  WN_STRING_TAIL3,
  WN_STRING_E0, /* after these first bytes the second one is restricted */
  WN_STRING_ED,
  WN_STRING_F0,
  WN_STRING_F4,
  WN_STRING_ESCAPE, /* after a backslash */
  WN_STRING_HEX4,   /* so many hexadecimal digits are missing */
  WN_STRING_HEX3,
  WN_STRING_HEX2,
  WN_STRING_HEX1,
  WN_STRING_ZERO3, /* the same, and those so far are 0 */
  WN_STRING_ZERO2,
  WN_STRING_ZERO1,
  WN_STRING_D3,    /* after "d" */
  WN_STRING_HIGH2, /* of the first half of a pair */
  WN_STRING_HIGH1,
  WN_STRING_PAIR, /* its second half: the backslash */
  WN_STRING_PAIR_U,
  WN_STRING_PAIR4,
  WN_STRING_PAIR3,
  WN_STRING_PAIR2,
  WN_STRING_PAIR1
};
/* After a byte that does not end the string; WN_STRING_NONE: it may not stand here. */
enum wn_json_string wn_json_string_step(enum wn_json_string s, unsigned char byte);

struct wn_json_state {
  uint32_t top;          /* the innermost object or list that is open, a frame; 0: none */
  uint8_t mode, part;    /* part: inside a string or a number */
  uint8_t lines, blanks; /* of the white space so far */
  uint32_t what;
  uint32_t low, high; /* words that may still be meant */
  uint32_t at;        /* bytes of the word; characters of the string; digits */
  int64_t number;
};

struct wn_json_frame {
  uint32_t up, shape;
  uint32_t index; /* of an object: the first property that may still come; of a list: elements begun */
  uint32_t moved;
  int32_t depth;
  uint64_t hash; /* of it and all below it */
};

/* States and frames grow at their ends and are cut off there: whoever tries a byte takes what it added away again. */
struct wn_json_machine {
  const struct wn_schema *schema;
  struct wn_json_frame *frames;
  uint32_t frame_count, frame_room;
  struct wn_json_state *states;
  uint32_t state_count, state_room;
  bool failed; /* out of memory */
};

/* The only state is the beginning. */
wn_status wn_json_machine_open(wn_context *ctx, const struct wn_schema *schema, struct wn_json_machine *out);
void wn_json_machine_close(struct wn_json_machine *m); /* the schema is the caller's */
void wn_json_machine_reset(struct wn_json_machine *m);

/* Appends a state; a frame upon `up`. */
void wn_json_add(struct wn_json_machine *m, const struct wn_json_state *state);
uint32_t wn_json_push(struct wn_json_machine *m, uint32_t up, uint32_t shape, uint32_t index);

/* Appends the states that follow on `count` of them from `first` on, each once, at most WN_SCHEMA_ALTERNATIVES. */
void wn_json_step(struct wn_json_machine *m, uint32_t first, uint32_t count, unsigned char byte);
/* Appends what follows on the quote that ends a free string or name. */
void wn_json_end_string(struct wn_json_machine *m, const struct wn_json_state *state);
bool wn_json_is_complete(const struct wn_json_machine *m, const struct wn_json_state *s);
/* Is it in a name that is none of the schema's? *simple: which may have no backslash. */
bool wn_json_is_free_name(const struct wn_json_machine *m, const struct wn_json_state *s, bool *simple);
/* The states from `first` on become the only ones; frames that none of them needs go. */
void wn_json_keep(struct wn_json_machine *m, uint32_t first);
/* Keeps each of the states from `first` on once, and no more than WN_SCHEMA_ALTERNATIVES. */
void wn_json_unique(struct wn_json_machine *m, uint32_t first);

#endif
