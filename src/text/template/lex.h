/* Tokens of a template. */
#ifndef WN_TEXT_TEMPLATE_LEX_H
#define WN_TEXT_TEMPLATE_LEX_H

#include "text/template/jinja.h"

enum jinja_token_kind {
  TOKEN_END,
  TOKEN_DATA,  /* text outside tags */
  TOKEN_PRINT, /* {{ */
  TOKEN_BLOCK, /* {% */
  TOKEN_CLOSE, /* }} or %} */
  TOKEN_NAME,
  TOKEN_TEXT, /* with its quotes */
  TOKEN_INT,
  TOKEN_FLOAT,
  TOKEN_OP
};
struct jinja_token {
  unsigned char kind;
  int line;
  const char *text; /* [bytes] */
  size_t bytes;
};
struct jinja_lexer {
  struct jinja_run *run;
  const char *source; /* [bytes], line ends are \n */
  size_t bytes, at;
  int line;
  struct jinja_token *tokens; /* [count], the last is TOKEN_END */
  size_t count, room;
};
void wn_jinja_lex(struct jinja_lexer *x);

#endif
