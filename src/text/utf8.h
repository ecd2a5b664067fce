/* UTF-8 validity, with the offset of the first bad byte (Unicode 15, table 3-7: no overlong forms, no surrogates,
 * nothing above U+10FFFF). One pass, eight ASCII bytes at a time. */
#ifndef WN_TEXT_UTF8_H
#define WN_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* True when text[0..bytes) is valid UTF-8; else *bad is the offset of the first byte of the first bad sequence. */
bool wn_utf8_check(const char *text, size_t bytes, size_t *bad);

/* Checks the sequence that starts at text[0], bytes >= 1. Returns its length, 1 to 4, if it is complete and valid; 0 if
 * it is invalid; -1 if it is a valid beginning that the end of the text cuts off. */
int wn_utf8_sequence(const char *text, size_t bytes);

/* The number of characters in valid UTF-8. */
size_t wn_utf8_characters(const char *text, size_t bytes);

#endif
