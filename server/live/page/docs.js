/** The API documentation: Swagger UI over /openapi.json. Where the server needs a key, this tab is asked for it. */

const KEY_ITEM = "tickrt.key";

/** @param {Record<string, string>} headers */
function withKey(headers) {
  const key = sessionStorage.getItem(KEY_ITEM);
  return key && !headers.Authorization ? { ...headers, Authorization: `Bearer ${key}` } : headers;
}

/** The OpenAPI document; undefined where no accepted key is given. */
async function loadDocument() {
  for (;;) {
    const response = await fetch("openapi.json", { headers: withKey({}) });
    if (response.status !== 401) return response.json();
    const key = prompt("This server needs an API key. It stays in this tab.");
    if (!key) return undefined;
    sessionStorage.setItem(KEY_ITEM, key);
  }
}

SwaggerUIBundle({
  spec: await loadDocument(),
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null,
  /** @param {{ headers: Record<string, string> }} request */
  requestInterceptor: (request) => ({ ...request, headers: withKey(request.headers) }),
});
