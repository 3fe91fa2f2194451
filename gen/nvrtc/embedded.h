/* embedded.h: the templates, as templates/embed.cmake compiled them in; templates/files.cmake finds them. */
#ifndef LUATTN_GEN_EMBEDDED_H
#define LUATTN_GEN_EMBEDDED_H

#include "gen/nvrtc/nvrtc.h"

extern const template_file luattn_embedded_templates[];
extern const int luattn_embedded_template_count;

#endif
