/* The list of a report's sections, in the page's order. A new one is its own file in sections/ and one line here. */
#include "report/section.h"

extern const struct wn_section wn_section_training, wn_section_texts, wn_section_budgets, wn_section_memory,
    wn_section_spans, wn_section_meaning, wn_section_look, wn_section_answers;

static const struct wn_section *const sections[] = {
    &wn_section_texts,   &wn_section_training, &wn_section_budgets, &wn_section_memory,
    &wn_section_answers, &wn_section_spans,    &wn_section_meaning, &wn_section_look,
};

int wn_section_count(void) {
  return (int)(sizeof sections / sizeof *sections);
}

const struct wn_section *wn_section_at(int i) {
  return i >= 0 && i < wn_section_count() ? sections[i] : NULL;
}
