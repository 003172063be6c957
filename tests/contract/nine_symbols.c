/* All that TensorRT's Python bindings look up when they are imported. Nothing of it works. */
#define NOTHING(name) void *name(void) { return 0; }
NOTHING(createInferBuilder_INTERNAL)
NOTHING(createInferRefitter_INTERNAL)
NOTHING(createInferRuntime_INTERNAL)
NOTHING(createNvOnnxParserRefitter_INTERNAL)
NOTHING(createNvOnnxParser_INTERNAL)
NOTHING(getBuilderPluginRegistry)
NOTHING(getPluginRegistry)
int getNvOnnxParserVersion(void) { return 0; }
int initLibNvInferPlugins(void) { return 1; }
