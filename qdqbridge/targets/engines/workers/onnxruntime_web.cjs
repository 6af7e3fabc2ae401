// Answers requests of onnxruntime_web.py; NODE_PATH or the working directory has onnxruntime-web.
const { createRequire } = require("module");
const { readFileSync } = require("fs");
const here = createRequire(process.cwd() + "/");
const found = (name) => { try { return require(name); } catch { return here(name); } };
const say = (told) => process.stdout.write("=" + JSON.stringify(told) + "\n");
let ort;
try { ort = found("onnxruntime-web"); }
catch (error) { say({ error: error.message.split("\n")[0] }); process.exit(1); }
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, uint8: Uint8Array, int8: Int8Array,
  uint16: Uint16Array, int16: Int16Array, int32: Int32Array, uint32: Uint32Array,
  int64: BigInt64Array, bool: Uint8Array, float16: Uint16Array,
};
const sessions = {};
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";

async function answer(request) {
  if (request.do === "version") return ort.env.versions.web;
  if (request.do === "load") {
    const before = sessions[request.key];
    delete sessions[request.key];
    await before?.release();
    const options = { executionProviders: ["wasm"] };
    sessions[request.key] = await ort.InferenceSession.create(readFileSync(request.file), options);
    return null;
  }
  const feeds = {};
  for (const [name, [type, shape, data]] of Object.entries(request.inputs)) {
    const bytes = new Uint8Array(Buffer.from(data, "base64"));
    feeds[name] = new ort.Tensor(type, new ARRAYS[type](bytes.buffer), shape);
  }
  const results = {};
  for (const [name, tensor] of Object.entries(await sessions[request.key].run(feeds))) {
    const { buffer, byteOffset, byteLength } = tensor.data;
    const data = Buffer.from(buffer, byteOffset, byteLength).toString("base64");
    results[name] = [tensor.type, tensor.dims, data];
  }
  return results;
}

(async () => {
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    let told;
    try { told = { value: await answer(JSON.parse(line)) }; }
    catch (error) { told = { error: String(error?.message ?? error) }; }
    say(told);
  }
})();
