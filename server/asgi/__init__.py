"""HTTP below the routes: connections, middleware, request bodies, problem documents, the OpenAPI schema."""
