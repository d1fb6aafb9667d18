// GET / answers with what was computed for this visit; the number of visits is kept in memory.
'use strict';
const { createHash } = require('crypto');
const http = require('http');

let visits = 0;
const server = http.createServer((request, response) => {
  visits += 1;
  const rows = Array.from({ length: 50 }, (_, id) => ({
    id,
    key: createHash('sha256').update(`plover ${id}`).digest('hex'),
  }));
  rows.sort((a, b) => (a.key < b.key ? -1 : 1));
  const body = JSON.stringify({ visits, rows });
  response.writeHead(200, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(body),
  });
  response.end(body);
});
// Connections live as long as their clients want, and no timer looks after them.
server.keepAliveTimeout = 0;
server.headersTimeout = 0;
server.requestTimeout = 0;
server.listen(80, '0.0.0.0');
