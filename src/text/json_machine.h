/* An automaton over the bytes of a JSON text that fits a schema. A state is a stack of the open objects and lists, and
 * a few numbers for the position inside a JSON token. If a schema allows several alternatives, several states are
 * followed at once. Every state can be completed to a text: nothing is begun that could not end within WN_SCHEMA_DEPTH.
 *
 * Of what JSON allows, this is generated: properties in the order of the schema, other properties after them; names and
 * constants as wn_json_text writes them; as white space only one blank, or one or two newlines and up to WN_JSON_INDENT
 * blanks; numbers with at most 18 digits before and 20 after the point, and exponents up to 280; no \u0000 and no half
 * of a surrogate pair; nothing after the text. Strings that match regular expressions have no escape that is not
 * needed, and no character that needs \u. */
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
  WN_JSON_STRING,     /* in a string of shape `what` */
  WN_JSON_WORD,       /* in one of the words from `low` to `high` */
  WN_JSON_NUMBER,
  WN_JSON_DECIMAL, /* in a decimal of shape `what` */
  WN_JSON_REGULAR, /* in a string of shape `what`, in state `at` of its automaton */
  WN_JSON_AFTER    /* after a value */
};

/* The position inside a string. */
enum wn_json_string {
  WN_STRING_PLAIN, /* between two characters */
  WN_STRING_NONE,  /* not inside a string */
  WN_STRING_TAIL1, /* this many bytes of a character are missing */
  WN_STRING_TAIL2,
  WN_STRING_TAIL3,
  WN_STRING_E0, /* after these first bytes, which restrict the second */
  WN_STRING_ED,
  WN_STRING_F0,
  WN_STRING_F4,
  WN_STRING_ESCAPE, /* after a backslash */
  WN_STRING_HEX4,   /* this many hexadecimal digits are missing */
  WN_STRING_HEX3,
  WN_STRING_HEX2,
  WN_STRING_HEX1,
  WN_STRING_ZERO3, /* the same, and all digits so far are 0 */
  WN_STRING_ZERO2,
  WN_STRING_ZERO1,
  WN_STRING_D3,    /* after the hexadecimal digit d */
  WN_STRING_HIGH2, /* in the first half of a surrogate pair */
  WN_STRING_HIGH1,
  WN_STRING_PAIR, /* before its second half: the backslash is next */
  WN_STRING_PAIR_U,
  WN_STRING_PAIR4,
  WN_STRING_PAIR3,
  WN_STRING_PAIR2,
  WN_STRING_PAIR1
};
/* The position after a byte that does not end the string; WN_STRING_NONE: the byte is not allowed here. */
enum wn_json_string wn_json_string_step(enum wn_json_string s, unsigned char byte);

struct wn_json_state {
  uint32_t top;          /* frame of the innermost open object or list; 0: none */
  uint8_t mode, part;    /* part: position inside a string or a number */
  uint8_t lines, blanks; /* newlines and blanks of the current white space */
  uint32_t what;
  uint32_t low, high; /* words that are still possible */
  uint32_t at;        /* position: bytes of the word, characters of the string, or digits */
  int64_t number;     /* digits so far, or a character's bits */
};

struct wn_json_frame {
  uint32_t up, shape;
  uint32_t index; /* object: the first property that may still come; list: how many elements have begun */
  uint32_t moved;
  int32_t depth;
  uint64_t hash; /* of this frame and all below it */
};

/* States and frames are added at the end of their arrays. A caller that only tries a byte cuts off what it added. */
struct wn_json_machine {
  const struct wn_schema *schema;
  struct wn_json_frame *frames;
  uint32_t frame_count, frame_room;
  struct wn_json_state *states;
  uint32_t state_count, state_room;
  bool failed; /* out of memory */
};

/* Starts with one state, the beginning of a text. */
wn_status wn_json_machine_open(wn_context *ctx, const struct wn_schema *schema, struct wn_json_machine *out);
void wn_json_machine_close(struct wn_json_machine *m); /* the schema belongs to the caller */
void wn_json_machine_reset(struct wn_json_machine *m);

/* Appends a state; pushes a frame on top of `up`. */
void wn_json_add(struct wn_json_machine *m, const struct wn_json_state *state);
uint32_t wn_json_push(struct wn_json_machine *m, uint32_t up, uint32_t shape, uint32_t index);

/* Appends the states that follow the `count` states from `first` on after this byte: each once, at most
 * WN_SCHEMA_ALTERNATIVES. */
void wn_json_step(struct wn_json_machine *m, uint32_t first, uint32_t count, unsigned char byte);
/* Appends the states after the quote that ends a string or a name that is not the schema's. */
void wn_json_end_string(struct wn_json_machine *m, const struct wn_json_state *state);
bool wn_json_is_complete(const struct wn_json_machine *m, const struct wn_json_state *s);
/* Is the state inside a name that is not the schema's? *simple: such a name may have no backslash. */
bool wn_json_is_free_name(const struct wn_json_machine *m, const struct wn_json_state *s, bool *simple);
/* Keeps only the states from `first` on, and the frames that they need. */
void wn_json_keep(struct wn_json_machine *m, uint32_t first);
/* Removes duplicates among the states from `first` on and keeps at most WN_SCHEMA_ALTERNATIVES. */
void wn_json_unique(struct wn_json_machine *m, uint32_t first);

#endif
