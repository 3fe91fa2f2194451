/* build_id.h: names the build of the generator, so that images of different builds have different keys. */
#ifndef LUATTN_GEN_BUILD_ID_H
#define LUATTN_GEN_BUILD_ID_H

/* 64 hexadecimal digits, the same for the same sources wherever and whenever they are built. */
extern const char gen_build_id[];

#endif
